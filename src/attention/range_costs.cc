// The arithmetic of range_costs.h, by the cost model. Layer: attention.
#include "attention/range_costs.h"

#include <cmath>

namespace coppice::attention {
namespace {

// A piece is no shorter than this multiple of what cutting it off costs: on a GPU, and where steps are sums, which do not know how
// far a state has to go between cores.
constexpr double kMinPieceOverhead = 4, kMinSumPieceOverhead = 6;
// Tasks a worker should have, so that longest-first order evens out the rest.
constexpr double kTasksPerWorker = 3;

// The power of 2^(1/4) at or above `value`.
double Quantise(double value) { return value <= 0 ? 0 : std::exp2(std::ceil(4 * std::log2(value)) / 4); }

}  // namespace

double TargetTaskNs(const CostModel& cost, int64_t ranges_ps) {
  return std::max(Quantise(static_cast<double>(ranges_ps) * 1e-3 / kTasksPerWorker), kMinTaskStarts * cost.machine().item_fixed_ns);
}

int32_t RangeCosts::PiecesToLower(int32_t rows, int32_t tokens, double target_task_ns) const {
  const RowCosts& costs = Of(rows);
  const double whole_ns = tokens * costs.token_ns + problem_.cost.machine().item_fixed_ns;
  if (whole_ns <= target_task_ns) return 1;
  const int64_t blocks = CeilDiv(rows, problem_.traits.dense_tile_rows);
  return std::clamp(static_cast<int32_t>(CeilDiv(TasksOfAtMost(whole_ns, target_task_ns), blocks)), 1,
                    std::max(1, tokens / costs.shortest_piece));
}

RowCosts RangeCosts::Compute(int32_t rows) const {
  const CostModel& cost = problem_.cost;
  const double compute_ns = cost.ComputeNs(rows);
  const double token_ns = std::max(cost.rates().read_ns, compute_ns) * cost.workers() / problem_.spec.num_kv_heads;
  const double cut_ns =
      cost.machine().item_fixed_ns + (cost.DenseStartNs(rows) + cost.StateNs(rows)) * cost.workers() / problem_.spec.num_kv_heads;
  const double shortest = (cost.has_latencies() ? kMinPieceOverhead : kMinSumPieceOverhead) * cut_ns / token_ns;
  return {.rows = rows,
          .row_groups = static_cast<int32_t>(cost.tiles().RowGroups(rows)),
          .shortest_piece = std::max(2 * problem_.traits.kv_tile, static_cast<int32_t>(std::min(shortest, 1e9))),
          .dense_tasks = cost.tiles().DenseTasks(rows),
          .computed_rows = cost.tiles().ComputedRows(rows),
          .compute_ps = Picoseconds(compute_ns),
          .compute_ns = compute_ns,
          .token_ns = token_ns};
}

Load RangeCosts::Of(const ShareRange& range, int32_t row_groups, int32_t pieces) const {
  const CostModel& cost = problem_.cost;
  const RowCosts& costs = Of(range.rows);
  const int32_t groups = std::max(row_groups, costs.row_groups), tokens = range.planned_tokens();
  const int32_t cached = std::clamp(range.cached_end - range.begin, 0, tokens);
  Load load{.memory_ns = (tokens - cached) * cost.rates().read_ns,
            .compute_ns = tokens * costs.compute_ns,
            .overhead_ns = groups * pieces * cost.rates().item_ns + pieces * cost.DenseStartNs(range.rows)};
  if (cached > 0 || groups > 1)
    load.memory_ns += static_cast<double>(cached + int64_t{tokens} * (groups - 1)) * cost.RereadNs(tokens);
  return load;
}

}  // namespace coppice::attention
