// Plans made by hand, without a cost model: the shapes that a backend must execute, chosen freely by a test.
// Layer: tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::testing {

struct HandPlanOptions {
  bool share = true;            // an item per node that several branches with queries have in common
  double read_per_child = 0.0;  // chance that such a node is read by each branch below it instead
  int32_t cut_multiple = 0;     // > 0: ranges are also cut at random multiples of this many kv indices
  double cut = 0.3;             // chance of a cut at each multiple
  bool stream_only = false;     // kind of all items; else by rows
  int32_t dense_min_rows = 8;
  int32_t lookahead = 0;  // empty items past the live end of each branch, as a planner lays them out ahead
};

// A plan over one forest; valid while lengths grow. Owns what its PlanView shows.
class HandPlan {
 public:
  HandPlan(const AttentionSpec& spec, const PrefixForestView& forest, const HandPlanOptions& options, uint64_t seed);
  PlanView View() const;
  // Capacities of exactly this plan.
  PlanSizes Sizes() const;
  int32_t max_contributions_of_a_set() const;

 private:
  struct Range {
    int32_t begin, end;
  };
  void AddItem(int32_t page_row, Range range, const std::vector<int32_t>& sets);

  AttentionSpec spec_;
  HandPlanOptions options_;
  int32_t page_size_, num_states_ = 0;
  std::vector<WorkItem> items_;
  std::vector<int32_t> members_, compute_queue_, bandwidth_queue_;
  std::vector<MergeSet> sets_;
  std::vector<Contribution> contributions_;
  std::vector<std::vector<Contribution>> of_set_;
};

// Counts over the plans that ran.
struct PlanCoverage {
  int64_t cuts = 0;                  // items that begin inside a node's tokens
  int64_t merges_of_three = 0;       // merge sets with three contributions or more
  int64_t masked = 0, unmasked = 0;  // items

  void Add(const PlanView& plan, const PrefixForestView& forest);
};

// Of a merge set; at least 1.
int32_t MostContributions(const PlanView& plan);

}  // namespace coppice::attention::testing
