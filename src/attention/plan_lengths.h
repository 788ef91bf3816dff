// For which lengths of its branches a plan holds: while only lengths grow, and not past what was laid out, nothing is planned
// again. Layer: attention, private.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "attention/arena.h"
#include "attention/forest_history.h"
#include "attention/lower/item_lowering.h"
#include "attention/plan_changes.h"
#include "attention/plan_problem.h"
#include "attention/share/share_plan.h"

namespace coppice::attention {

class PlanLengths {
 public:
  explicit PlanLengths(const PlanProblem& problem) : problem_(problem) {}
  void Layout(Arena& arena);

  // Any length of any branch, of one branch, changes no decision.
  void Clear();
  void Retire(int32_t branch);
  // The steps left if the plan for the forest at hand is one for this forest too. ForestIndex::CheckStep checks the changes of
  // the step.
  std::optional<int32_t> StepsLeft(const PrefixForestView& forest, const ForestHistory& history) const;
  // For a new plan: finds the lengths of marked branches, and returns the steps left.
  int32_t Hold(const ForestHistory& history, const PlanChanges& changes, const SharePlan& shares, const ItemLowering& items);

  // [B] lengths that change no decision.
  std::span<const int32_t> least() const { return hold_min_; }
  std::span<const int32_t> most() const { return hold_max_; }

 private:
  void HoldBranch(int32_t branch, const ForestIndex& forest, const SharePlan& shares, const ItemLowering& items);

  const PlanProblem& problem_;
  std::span<int32_t> hold_min_, hold_max_;  // [B]
  std::span<int32_t> min_len_, max_len_;    // [B] for which the plan holds
  std::span<uint8_t> grows_;                // [B] laid out for lengths to come
};

}  // namespace coppice::attention
