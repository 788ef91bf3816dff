// What is shared: for each node of the forest whether its tokens are read once for all rows below it or by the ranges below, and
// from that the range of each shared node and row tile. Knows no items, cuts or backends: prices are those of RangeCosts, and near
// the edge those of the backend's StepPricer. Edited in place: only changed nodes are decided again.
// Layer: attention, private. Hydragen section 3, Bifurcated section 4; many levels: Cascade Inference; prompt phase: RelayAttention
// algorithm 1. docs/attention.md, "What is decided".
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
#include "attention/share/step_judge.h"
#include "attention/step_pricer.h"

namespace coppice::attention {

// Halvings of splitting, then of sharing too, before giving both up to fit a capacity.
inline constexpr int32_t kOnlyCoarser = 2, kMaxPressure = 12;

class SharePlan {
 public:
  SharePlan(const PlanProblem& problem, const RangeCosts& costs, const RowTiles& tiles)
      : problem_(problem), costs_(costs), tiles_(tiles), judge_(problem, costs, tiles) {}
  void Layout(Arena& arena);
  // Null: steps are compared by their sums.
  void SetPricer(std::unique_ptr<StepPricer> pricer) { judge_.SetPricer(std::move(pricer)); }

  // A node or row tile that is no more.
  void RetireNode(int32_t n);
  void RetireOwner(int32_t owner);

  // The stages for one forest, in order. Sum goes up and down the marked nodes, marks their ancestors and finds prices; Decide
  // decides and finds ranges, and may be called again with more pressure, if what comes of it does not fit: REQUIRES all nodes
  // marked then.
  void Sum(const ForestIndex& forest, PlanChanges& changes);
  void Decide(int32_t pressure);

  // What came of it. Owners: PlanProblem.
  const NodePlan& node(int32_t n) const { return nodes_[n]; }
  const ShareRange& range(int32_t owner) const { return ranges_[owner]; }
  int64_t range_ps(int32_t owner) const { return range_ps_[owner]; }  // predicted before any cut
  int64_t ranges_ps() const { return ranges_ps_; }                    // of all of them
  int32_t shared_nodes() const { return shared_nodes_; }
  int32_t absorbed_nodes() const { return absorbed_nodes_; }
  int32_t nodes_decided() const { return nodes_decided_; }  // for the last forest
  double step_ns() const { return judge_.step_ns(); }       // predicted, where whole steps are
  double memory_price() const { return memory_price_; }
  double compute_price() const { return compute_price_; }
  bool Grows(int32_t branch) const { return attention::Grows(*forest_, tiles_, branch); }

 private:
  // tree_sums.cc
  void SumUpwards();
  void SumNode(int32_t n);
  void FindChains();
  // decide.cc
  void SetPrices();
  void DecideNode(int32_t n);
  Decision Choose(int32_t n) const;
  void CountDecision(const NodePlan& node, int32_t sign);
  void ListItems();
  void JudgeStep();
  // ranges.cc
  void AssignRanges();
  void SetRange(int32_t owner, const ShareRange& range);

  const PlanProblem& problem_;
  const RangeCosts& costs_;
  const RowTiles& tiles_;
  StepJudge judge_;
  const ForestIndex* forest_ = nullptr;  // of the last Sum
  PlanChanges* changes_ = nullptr;
  int32_t pressure_ = 0;

  std::span<NodePlan> nodes_;     // [N]
  std::span<ShareRange> ranges_;  // [owners]
  std::span<int64_t> range_ps_;   // [owners] predicted before any cut
  int64_t ranges_ps_ = 0;
  int64_t step_tokens_ = 0, step_compute_ps_ = 0;  // sums over nodes
  int32_t shared_nodes_ = 0, absorbed_nodes_ = 0, nodes_decided_ = 0;

  // Inputs that all decisions depend on, coarse enough to change rarely.
  double memory_price_ = 1, compute_price_ = 1;
  bool sharing_pays_ = true;
};

}  // namespace coppice::attention
