// Whole steps: the step as the nodes want it against the one that shares nothing, both kept as sums of their items, which edits add
// to and subtract from. By the sums alone where these are clear or the backend has no StepPricer. docs/attention.md, "Whole steps".
// Layer: attention, private.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "attention/arena.h"
#include "attention/forest.h"
#include "attention/plan_problem.h"
#include "attention/range_costs.h"
#include "attention/row_tiles.h"
#include "attention/share/node_plan.h"
#include "attention/step_model.h"
#include "attention/step_pricer.h"

namespace coppice::attention {

// A range's item before any cut, at typical lengths.
struct StepItem {
  int32_t rows = 0;  // 0: reads nothing
  int32_t begin = 0, end = 0;
  int32_t num_sets = 0;  // of a row tile; 0: a shared node
  int32_t items = 0;     // of a row tile's rows: itself and the shared ones above

  int32_t tokens() const { return std::max(0, end - begin); }
  bool operator==(const StepItem&) const = default;
};

class StepComparison {
 public:
  StepComparison(const PlanProblem& problem, const RangeCosts& costs, const RowTiles& tiles)
      : problem_(problem), costs_(costs), tiles_(tiles) {}
  void Layout(Arena& arena);
  // Null: steps are compared by their sums.
  void SetPricer(std::unique_ptr<StepPricer> pricer) { pricer_ = std::move(pricer); }

  // Items by range, of the step that shares nothing and of the one that the nodes want.
  const StepItem& unshared(RangeId range_id) const { return unshared_.items[range_id]; }
  void SetUnshared(RangeId range_id, const StepItem& item) { Set(unshared_, range_id, item); }
  void SetWanted(RangeId range_id, const StepItem& item) { Set(wanted_, range_id, item); }
  // A node's tokens that both steps read.
  void SetReadTokens(NodePlan& node, int64_t tokens);

  // Whether the wanted step ends soon enough before the one that shares nothing, where that is to be asked.
  bool SavesTime(const ForestIndex& forest, std::span<const NodePlan> nodes);
  double step_ns() const { return step_ns_; }  // of the two, the one that is planned
  const StepShape& unshared_shape() const { return unshared_.shape; }

 private:
  // `shape` is the sum of the items.
  struct Step {
    StepShape shape;
    ByRange<StepItem> items;
    double ns = 0;         // by sums; 0: not asked for since it changed
    double as_cut_ns = 0;  // the same by the backend's cuts

    void Change() { ns = as_cut_ns = 0; }
  };
  // How CostModel::Cut cuts an item of a step; remembered as RowCosts are.
  struct ItemCut {
    int32_t rows = -1, tokens = 0;
    int64_t shortest = 0;
    Pieces pieces;
    int64_t dense_tasks = 0;
    double fold_ns = 0, fold_state_ns = 0;
  };

  void Set(Step& step, RangeId range_id, const StepItem& item);
  void Count(const StepItem& item, int64_t sign, StepShape& shape) const;
  bool WantedSavesTime(const ForestIndex& forest, std::span<const NodePlan> nodes);
  double SumsNs(const ForestIndex& forest, Step& step);
  double AsCutNs(const ForestIndex& forest, std::span<const NodePlan> nodes, Step& step);
  CriticalPath CriticalPathOf(const ForestIndex& forest, const Step& step);
  const ItemCut& CutOf(int32_t rows, int32_t tokens, int64_t shortest) {
    const uint32_t hash = (static_cast<uint32_t>(rows) * 0x9E3779B1u + static_cast<uint32_t>(tokens)) * 0x85EBCA6Bu;
    ItemCut& cut = item_cuts_[hash >> (32 - kItemCutsBits)];
    if (cut.rows != rows || cut.tokens != tokens || cut.shortest != shortest) [[unlikely]] {
      cut = ComputeItemCut(rows, tokens, shortest);
    }
    return cut;
  }
  ItemCut ComputeItemCut(int32_t rows, int32_t tokens, int64_t shortest) const;

  const PlanProblem& problem_;
  const RangeCosts& costs_;
  const RowTiles& tiles_;
  std::unique_ptr<StepPricer> pricer_;
  Step unshared_, wanted_;
  double step_ns_ = 0;
  bool by_cuts_ = false;              // what the steps are compared by
  std::span<int32_t> states_above_;   // [N] CriticalPathOf: pieces of shared nodes, down to and including this one
  std::span<StepRange> step_ranges_;  // [ranges] AsCutNs
  std::span<int32_t> range_of_node_;  // [N] AsCutNs: of the nearest node that is shared, this one or above; -1: none
  static constexpr int kItemCutsBits = 8;
  std::array<ItemCut, 1 << kItemCutsBits> item_cuts_;
};

}  // namespace coppice::attention
