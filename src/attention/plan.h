// The planner: a prefix forest becomes a list of work, the same for all backends, in pure host code, deterministic, without
// allocation after Create. Executes nothing (PlanExecutor) and touches no KV. Each part knows those before it, and none after it:
//
//   ForestHistory   the forest, checked, beside the one before it                           forest_history.h
//   PlanChanges     the nodes to look at again                                              plan_changes.h
//   SharePlan       what is read together: a range for each shared node and row tile        share/
//   ItemLowering    how ranges are cut into items and laid out: what a CPU executes         lower/
//   PlanLengths     for which lengths all of it holds                                       plan_lengths.h
//
// A GPU's lowering (cuda/lower/) goes on from the list. Layer: attention, private. docs/attention.md, "The plan", explains the
// decisions.
//
// Deterministic mode (docs/numerics.md, "Determinism"). A unit is 512 kv indices, or what the backend says, a superblock 8 units,
// both at absolute positions. The bits of a row are defined as: the state of each unit, computed from the empty state; units folded
// left to right inside their superblock; superblocks folded left to right. The planner keeps that order whatever is shared, by
// giving out only items whose one partial state is a term of that fold:
//   (a) a range inside one superblock that begins where the superblock begins: the left fold of its units so far;
//   (b) one unit: the next term of its superblock's fold;
//   (c) whole superblocks from the very first token of the path on: the left fold of superblocks so far;
//   (d) everything a merge set sees, as its only contribution.
// The merge folds contributions in path order and starts a new superblock at each item that begins with one. Node ends that are no
// multiple of the unit are shared up to the last multiple below; the rest is read by the items below the node.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/arena.h"
#include "attention/backend.h"
#include "attention/forest_history.h"
#include "attention/lower/item_lowering.h"
#include "attention/plan_changes.h"
#include "attention/plan_lengths.h"
#include "attention/plan_problem.h"
#include "attention/range_costs.h"
#include "attention/row_tiles.h"
#include "attention/share/share_plan.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"
#include "coppice/attention/node_reads.h"
#include "core/buffer.h"

namespace coppice::attention {

// A line of an explanation: "WHAT ID" first, where there is an id.
struct ExplainedLine {
  int32_t indent = 0;  // columns, from that of its node
  std::string_view what = {};
  int32_t id = -1;
  std::string text = {};
};

class Planner {
 public:
  // INVALID_ARGUMENT for a spec or capacity that is none; RESOURCE_EXHAUSTED if the system refuses the memory.
  static Result<std::unique_ptr<Planner>> Create(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                 const PlannerOptions& options, const BackendTraits& traits,
                                                 const MachineModel& machine);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // As AttentionPlan::Update. O(branches) while nothing but lengths changed.
  Status Update(const PrefixForestView& forest);
  int32_t StepsLeft() const { return steps_left_; }
  PlanView View() const;
  PlanStats Stats() const;
  std::string Explain() const;
  std::vector<NodeRead> NodeReads() const;  // by node slot

  // The length that a branch's items are taken to have where whole steps are predicted: one for each class of lengths.
  int32_t TypicalLength(int32_t branch) const;

  const PrefixForestView& forest() const { return forest_.view(); }  // as given to the last Update that succeeded
  const AttentionSpec& spec() const { return problem_.spec; }
  const PlanCapacity& capacity() const { return problem_.capacity; }
  const PlannerOptions& options() const { return problem_.options; }
  const BackendTraits& traits() const { return problem_.traits; }
  const MachineModel& machine() const { return problem_.machine; }
  const PlanSizes& sizes() const { return problem_.sizes; }

 private:
  friend PlanSizes ComputePlanSizes(const AttentionSpec&, const PlanCapacity&, const BackendTraits&);

  explicit Planner(const PlanProblem& problem);
  void Layout(Arena& arena);

  void Replan();
  void FindChanges();
  void RetireBranch(int32_t branch);

  // plan_stats.cc
  int64_t TokensRead() const;
  int64_t TokensReadUnshared() const;
  int64_t TokensDistinct() const;
  int64_t VisibleTokens() const;
  // plan_explain.cc
  std::vector<ExplainedLine> ExplainNode(int32_t n) const;
  ExplainedLine ExplainRange(RangeId range_id) const;

  PlanProblem problem_;
  Buffer memory_;
  ForestHistory forest_;
  PlanChanges changes_;
  RowTiles tiles_;
  RangeCosts costs_;
  SharePlan shares_;
  ItemLowering items_;
  PlanLengths lengths_;
  bool planned_ = false;
  int32_t coarsening_level_ = 0;  // how often the target task time was doubled, and shares halved, to fit the capacity
  int32_t steps_left_ = 0;
  int64_t updates_skipped_ = 0, updates_replanned_ = 0;
};

}  // namespace coppice::attention
