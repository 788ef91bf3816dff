// The planner's frame: sizes and memory, what one step may skip, the order of the stages. Every replanning runs the same stages;
// what did not change is recognised and left in place. Layer: attention.
#include "attention/plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include "attention/step_pricer.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

// So that kv indices ahead fit 32 bits.
constexpr int32_t kMaxLookahead = 1 << 20;

}  // namespace

PlanSizes ComputePlanSizes(const AttentionSpec& spec, const PlanCapacity& capacity, const BackendTraits& traits) {
  Planner counted(PlanProblem(spec, capacity, {}, traits, {}));
  PlanSizes sizes = counted.sizes();
  Arena arena(nullptr);
  counted.Layout(arena);
  sizes.host_bytes = arena.used();
  const size_t states = static_cast<size_t>(sizes.max_states) * (spec.head_dim + 2) * sizeof(float);
  const size_t tickets = static_cast<size_t>(sizes.max_merge_sets) * spec.num_kv_heads * sizeof(int32_t);
  sizes.workspace_bytes = RoundUp(states, sizes.alignment) + tickets;
  return sizes;
}

Planner::Planner(const PlanProblem& problem)
    : problem_(problem),
      tiles_(problem_),
      costs_(problem_),
      shares_(problem_, costs_, tiles_),
      items_(problem_, costs_, shares_, tiles_),
      lengths_(problem_) {}

Result<std::unique_ptr<Planner>> Planner::Create(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                 const PlannerOptions& options, const BackendTraits& traits,
                                                 const MachineModel& machine) {
  COPPICE_ASSIGN_OR_RETURN(const PlanCapacity resolved, ResolveCapacity(spec, capacity));
  if (options.lookahead_tokens < 0 || options.lookahead_tokens > kMaxLookahead) {
    return InvalidArgument("lookahead_tokens is " + std::to_string(options.lookahead_tokens) + ", expected 0 to " +
                           std::to_string(kMaxLookahead));
  }
  PlanProblem problem(spec, resolved, options, traits, machine);
  problem.cost = CostModel(spec, traits, machine);
  problem.sizes = ComputePlanSizes(spec, resolved, traits);
  std::unique_ptr<Planner> planner(new Planner(problem));
  COPPICE_ASSIGN_OR_RETURN(planner->memory_, Buffer::Allocate(problem.sizes.host_bytes));
  Arena arena(planner->memory_.data());
  planner->Layout(arena);
  planner->shares_.SetPricer(MakeStepPricer(planner->problem_));
  return planner;
}

void Planner::Layout(Arena& arena) {
  forest_.Layout(arena, problem_.capacity);
  changes_.Layout(arena, problem_.capacity);
  tiles_.Layout(arena);
  shares_.Layout(arena);
  items_.Layout(arena);
  lengths_.Layout(arena);
}

Status Planner::Update(const PrefixForestView& forest) {
  if (planned_) {
    if (const std::optional<int32_t> steps_left = lengths_.StepsLeft(forest, forest_)) {
      COPPICE_RETURN_IF_ERROR(forest_.TakeStep(forest, problem_.capacity));
      steps_left_ = *steps_left;
      ++updates_skipped_;
      return OkStatus();
    }
  }
  COPPICE_RETURN_IF_ERROR(forest_.Take(forest, problem_.capacity));
  Replan();
  ++updates_replanned_;
  return OkStatus();
}

void Planner::Replan() {
  FindChanges();
  shares_.Sum(forest_.now(), changes_);
  for (coarsening_level_ = 0;; ++coarsening_level_) {
    shares_.Decide(coarsening_level_);
    if (items_.Cut(forest_.now(), changes_, coarsening_level_)) break;
    COPPICE_CHECK(coarsening_level_ < kMaxCoarseningLevel);  // one unsplit item per tile always fits
    changes_.MarkAll();
  }
  if (!items_.LayOut()) {  // the pools are fragmented: lay everything out afresh
    items_.Clear();
    changes_.MarkAll();
    COPPICE_CHECK(items_.LayOut());
  }
  items_.FillQueues();
  steps_left_ = lengths_.Hold(forest_, changes_, shares_, items_);
  planned_ = true;
}

void Planner::FindChanges() {
  const ForestIndex &now = forest_.now(), &before = forest_.before();
  changes_.Begin(now);
  items_.Begin();
  if (!planned_) {
    items_.Clear();
    tiles_.Clear();
    lengths_.Clear();
    changes_.MarkAll();
    for (int32_t b = 0; b < now.num_branches(); ++b) tiles_.Create(b, now.query_count[b]);
    return;
  }
  forest_.ForEachChangedNode([&](int32_t n) {
    const int32_t parent = n < now.num_nodes() ? now.parent[n] : kFreeSlot;
    const int32_t parent_before = n < before.num_nodes() ? before.parent[n] : kFreeSlot;
    for (const int32_t changed : {n, parent, parent_before}) changes_.MarkMembers(changed);
    if (parent != kFreeSlot || parent_before == kFreeSlot) return;
    items_.RetireRange(NodeRange(n));
    shares_.RetireRange(NodeRange(n));
    shares_.RetireNode(n);
  });
  // All of them give back before any takes: merge sets suffice for one step's queries.
  forest_.ForEachRecountedBranch([&](int32_t b) { RetireBranch(b); });
  const auto count_of = [](const ForestIndex& index, int32_t b) { return b < index.num_branches() ? index.query_count[b] : 0; };
  forest_.ForEachChangedBranch(lengths_.least(), lengths_.most(), [&](int32_t b) {
    const int32_t count = count_of(now, b), count_before = count_of(before, b);
    if (count == 0 && count_before == 0) return;
    const int32_t node = count > 0 ? now.branch_node[b] : kFreeSlot;
    const int32_t node_before = count_before > 0 ? before.branch_node[b] : kFreeSlot;
    if (count == count_before && node == node_before) {  // its length matters
      changes_.Mark(node);
      return;
    }
    if (count != count_before) tiles_.Create(b, count);
    changes_.MarkBranch(b);
    changes_.MarkMembers(node);
    changes_.MarkMembers(node_before);
  });
  if (now.has_tree_mask() != before.has_tree_mask()) changes_.MarkAll();
  if (problem_.options.policy == SharePolicy::kOneLevel && now.ActiveBranches().size() != before.ActiveBranches().size()) {
    changes_.MarkAll();
  }
}

void Planner::RetireBranch(int32_t branch) {
  items_.RetireSets(branch);
  tiles_.ForEachSet(branch, tiles_.NumSets(branch), [&](int32_t set) { shares_.RetireRange(problem_.TileRange(set)); });
  tiles_.Retire(branch);
  lengths_.Retire(branch);
}

int32_t Planner::TypicalLength(int32_t branch) const {
  const ForestIndex& forest = forest_.now();
  if (tiles_.NumSets(branch) == 0 || !shares_.Grows(branch)) return forest.kv_len[branch];
  return problem_.PlannedClass(forest.begin[forest.branch_node[branch]], forest.kv_len[branch]).typical;
}

PlanView Planner::View() const {
  PlanView view = items_.View();
  view.revision = static_cast<uint64_t>(updates_replanned_);
  view.changed_since = view.revision > 0 ? view.revision - 1 : 0;
  return view;
}

}  // namespace coppice::attention
