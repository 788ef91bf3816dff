// The cost of reading a range for some rows, whole and cut: the share decision prices by the same numbers that the lowering cuts
// by. Layer: attention, private.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "attention/plan_problem.h"

namespace coppice::attention {

// The range that a shared node, or a row tile of a branch, reads for its merge sets. Before any cut.
struct ShareRange {
  int32_t begin = 0, end = 0;            // kv indices; end may be kLive
  int32_t rows = 0, num_sets = 0;        // per kv head. 0: it reads nothing
  int32_t planned_end = 0;               // end, or what kLive is taken to be
  int32_t cached_end = 0;                // tokens before it are read by others too
  int32_t min_query = 0, max_query = 0;  // kv indices of the first and last query

  int32_t planned_tokens() const { return planned_end - begin; }
};

// Of so many rows under one kv head.
struct RowCosts {
  int32_t rows = -1, row_groups = 0;
  int32_t shortest_piece = 0;  // tokens below which a cut saves no time
  int64_t dense_tasks = 0, computed_rows = 0;
  int64_t compute_ps = 0;
  double compute_ns = 0;  // one token, whole machine
  double token_ns = 0;    // one token of one kv head on one worker
};

// Sums that edits add to and subtract from are integers (picoseconds), so that they do not drift from a fresh plan's.
inline int64_t Picoseconds(double ns) { return static_cast<int64_t>(ns * 1e3 + 0.5); }

// Prices of a nanosecond of reading and one of computing where a step is decided about.
struct ResourcePrices {
  double memory = 1, compute = 1;
  bool operator==(const ResourcePrices&) const = default;
};
// All that PricesOf gives.
inline constexpr std::array<ResourcePrices, 5> kPrices = {{{1, 1}, {1, 0.5}, {1, 0.25}, {0.5, 1}, {0.25, 1}}};
// Of a step that reads so many tokens and computes for so long if everything is shared. The resource that binds has price 1; what
// the other one has to spare makes it cheaper, down to a quarter (not to nothing: many nodes could each spend the same slack).
// Steps of two keep prices, and with them the decisions of unchanged nodes, stable.
inline ResourcePrices PricesOf(const CostModel& cost, int64_t tokens, int64_t compute_ps) {
  const double memory = static_cast<double>(tokens) * cost.rates().read_ns, compute = static_cast<double>(compute_ps) * 1e-3;
  const auto price = [](double mine, double other) { return mine >= other ? 1.0 : mine * 2 >= other ? 0.5 : 0.25; };
  return {.memory = price(memory, compute), .compute = price(compute, memory)};
}

// The longest that a task is to be on its worker: no part of the worker's share of a step whose ranges take so long before any cut
// that is hard to even out. It changes by 19 % at least, so that small edits leave it alone.
double TargetTaskNs(const CostModel& cost, int64_t ranges_ps);
// Tasks of no more than the target task time.
inline int32_t TasksOfAtMost(double ns, double target_task_ns) {
  return static_cast<int32_t>(std::min(ns / target_task_ns, 65536.0)) + 1;
}
// A task takes several kv heads until it lasts this many starts.
inline constexpr double kMinTaskStarts = 8;

class RangeCosts {
 public:
  explicit RangeCosts(const PlanProblem& problem) : problem_(problem) {}

  // Remembered: a step has few different row counts.
  const RowCosts& Of(int32_t rows) const {
    RowCosts& costs = row_costs_[static_cast<uint32_t>(rows) * 0x9E3779B1u >> (32 - kRowCostsBits)];
    if (costs.rows != rows) [[unlikely]]
      costs = Compute(rows);
    return costs;
  }
  // A range read by so many groups of its rows, no fewer than the backend needs, in so many pieces along KV; its first row group
  // reads what others do not from memory.
  Load Of(const ShareRange& range, int32_t row_groups, int32_t pieces) const;
  // The same before any cut.
  Load Whole(const ShareRange& range) const { return Of(range, /*row_groups=*/0, 1); }
  // The pieces along KV that deterministic mode wants where a GPU's lowering goes on from them, which runs blocks of rows apart.
  int32_t PiecesToLower(int32_t rows, int32_t tokens, double target_task_ns) const;

 private:
  RowCosts Compute(int32_t rows) const;

  static constexpr int kRowCostsBits = 6;
  const PlanProblem& problem_;
  mutable std::array<RowCosts, 1 << kRowCostsBits> row_costs_;
};

}  // namespace coppice::attention
