// The share decision: for each node of the forest whether its tokens are read once for all rows below it or by the ranges below,
// and from that the range of each shared node and row tile. Knows no items, cuts or backends: prices are those of RangeCosts, and
// near the edge those of the backend's StepPricer. Edited in place: only changed nodes are decided again. Layer: attention,
// private. Hydragen section 3, Bifurcated section 4; many levels: Cascade Inference; prompt phase: RelayAttention algorithm 1.
// docs/attention.md, "What is decided".
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "attention/arena.h"
#include "attention/forest.h"
#include "attention/plan_changes.h"
#include "attention/plan_problem.h"
#include "attention/range_costs.h"
#include "attention/row_tiles.h"
#include "attention/share/node_plan.h"
#include "attention/share/range_ends.h"
#include "attention/share/step_comparison.h"
#include "attention/step_pricer.h"

namespace coppice::attention {

// Coarsening levels, to fit a capacity: the first ones lengthen tasks, further ones give up sharing too, the last one both.
inline constexpr int32_t kLengthensTasksOnly = 2, kMaxCoarseningLevel = 12;

class SharePlan {
 public:
  SharePlan(const PlanProblem& problem, const RangeCosts& costs, const RowTiles& tiles)
      : problem_(problem), costs_(costs), tiles_(tiles), comparison_(problem, costs, tiles) {}
  void Layout(Arena& arena);
  // Null: steps are compared by their sums.
  void SetPricer(std::unique_ptr<StepPricer> pricer) { comparison_.SetPricer(std::move(pricer)); }

  // A node or row tile that is no more.
  void RetireNode(int32_t n);
  void RetireRange(RangeId range_id);

  // The stages for one forest, in order. Sum goes up and down the marked nodes, marks their ancestors and finds prices; Decide
  // decides and finds ranges, and may be called again with a higher coarsening level, if the result does not fit: REQUIRES all
  // nodes marked then.
  void Sum(const ForestIndex& forest, PlanChanges& changes);
  void Decide(int32_t coarsening_level);

  // The result.
  const NodePlan& node(int32_t n) const { return nodes_[n]; }
  const ShareRange& range(RangeId range_id) const { return ranges_[range_id]; }
  int64_t range_ps(RangeId range_id) const { return range_ps_[range_id]; }  // predicted before any cut
  int64_t ranges_ps() const { return ranges_ps_; }                          // of all of them
  int32_t shared_nodes() const { return shared_nodes_; }
  int32_t unshared_nodes() const { return unshared_nodes_; }
  int32_t nodes_decided() const { return nodes_decided_; }  // for the last forest
  double step_ns() const { return comparison_.step_ns(); }  // predicted, where whole steps are
  double memory_price() const { return memory_price_; }
  double compute_price() const { return compute_price_; }
  bool Grows(int32_t branch) const { return attention::Grows(*forest_, tiles_, branch); }

 private:
  // tree_sums.cc
  void SumUpwards();
  void SumNode(int32_t n);
  void FindOnlyChildRuns();
  // decide.cc
  void SetPrices();
  void DecideNode(int32_t n);
  Decision Choose(int32_t n) const;
  void CountDecision(const NodePlan& node, int32_t sign);
  void ListItems();
  void CompareSteps();
  // ranges.cc
  void AssignRanges();
  void SetRange(RangeId range_id, const ShareRange& range);

  const PlanProblem& problem_;
  const RangeCosts& costs_;
  const RowTiles& tiles_;
  StepComparison comparison_;
  const ForestIndex* forest_ = nullptr;  // of the last Sum
  PlanChanges* changes_ = nullptr;
  int32_t coarsening_level_ = 0;

  std::span<NodePlan> nodes_;  // [N]
  ByRange<ShareRange> ranges_;
  ByRange<int64_t> range_ps_;  // predicted before any cut
  int64_t ranges_ps_ = 0;
  int64_t step_tokens_ = 0, step_compute_ps_ = 0;  // sums over nodes
  int32_t shared_nodes_ = 0, unshared_nodes_ = 0, nodes_decided_ = 0;

  // Inputs that all decisions depend on, coarse enough to change rarely.
  double memory_price_ = 1, compute_price_ = 1;
  bool sharing_saves_time_ = true;
};

}  // namespace coppice::attention
