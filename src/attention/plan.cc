// The planner's frame: sizes and memory, what one step may skip, the order of the stages. Every replanning runs the same stages;
// what did not change is recognised and left in place. Layer: attention.
#include "attention/plan.h"

#include <algorithm>
#include <climits>
#include <optional>
#include <string>
#include <utility>

#include "attention/plan_stages.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

// So that kv indices ahead fit 32 bits.
constexpr int32_t kMaxLookahead = 1 << 20;

}  // namespace

std::string_view Name(Decision decision) {
  switch (decision) {
    case Decision::kIdle: return "idle";
    case Decision::kNothing: return "nothing to decide";
    case Decision::kOnlyConsumer: return "read on by the only consumer";
    case Decision::kPolicy: return "not shared by policy";
    case Decision::kAbsorbed: return "absorbed";
    case Decision::kShared: return "shared";
    case Decision::kForced: return "shared by force";
    case Decision::kCapacity: return "absorbed for lack of capacity";
    case Decision::kNoGain: return "absorbed since the step gains nothing";
  }
  return "?";
}

PlanSizes Planner::Limits(const AttentionSpec& spec, const PlanCapacity& capacity, const BackendTraits& traits) {
  const int32_t set_queries = MaxSetQueries(spec.group_size());
  const int64_t sets = int64_t{capacity.max_branches} + capacity.max_queries / set_queries;
  // What a deep tree with a few cuts wants; more is dropped. Deterministic mode cuts every path at its superblocks.
  const int64_t depth = spec.deterministic ? 12 : 6;
  const int64_t cuts = int64_t{8} * traits.workers;
  // States: two levels for every query (a cached prefix under new prompts), more for as many as decode steps and drafts have.
  const int64_t deep_queries = std::min<int64_t>(capacity.max_queries, int64_t{2} * capacity.max_branches);
  const int64_t rows_with_states = (2 * int64_t{capacity.max_queries} + depth * 2 / 3 * deep_queries) * spec.group_size();
  PlanSizes sizes;
  const auto clamp = [](int64_t value) { return static_cast<int32_t>(std::min<int64_t>(value, INT32_MAX / 2)); };
  sizes.max_merge_sets = clamp(sets);
  sizes.max_items = clamp(depth * sets / 2 + 2 * int64_t{capacity.max_nodes} + cuts);
  sizes.max_members = clamp(depth * sets);
  // A cut gives a contribution to each set of a tile's rows; the heads of an item are tasks of their own.
  sizes.max_contributions = clamp(depth * sets + cuts * std::max(1, traits.dense_tile_rows / spec.num_qo_heads));
  const int64_t state_rows = rows_with_states + cuts * std::max(64, spec.group_size());
  sizes.max_states = clamp(state_rows * spec.num_kv_heads) / spec.num_kv_heads * spec.num_kv_heads;
  return sizes;
}

PlanSizes ComputePlanSizes(const AttentionSpec& spec, const PlanCapacity& capacity, const BackendTraits& traits) {
  PlanSizes sizes = Planner::Limits(spec, capacity, traits);
  Planner counted(spec, capacity, {}, traits, {});
  Arena arena(nullptr);
  counted.Layout(arena);
  sizes.host_bytes = arena.used();
  const size_t states = static_cast<size_t>(sizes.max_states) * (spec.head_dim + 2) * sizeof(float);
  const size_t tickets = static_cast<size_t>(sizes.max_merge_sets) * spec.num_kv_heads * sizeof(int32_t);
  sizes.workspace_bytes = (states + sizes.alignment - 1) / sizes.alignment * sizes.alignment + tickets;
  return sizes;
}

Planner::Planner(const AttentionSpec& spec, const PlanCapacity& capacity, const PlannerOptions& options,
                 const BackendTraits& traits, const MachineModel& machine)
    : spec_(spec),
      capacity_(capacity),
      options_(options),
      traits_(traits),
      machine_(machine),
      sizes_(Limits(spec, capacity, traits)),
      set_queries_(MaxSetQueries(spec.group_size())),
      tile_sets_(std::max(1, traits.dense_tile_rows / (set_queries_ * spec.group_size()))),
      share_unit_(spec.deterministic ? traits.deterministic_unit : 1),
      window_unit_(spec.deterministic ? traits.deterministic_unit : RoundUp(64, traits.kv_tile)),
      index_(&index_a_),
      previous_(&index_b_),
      optional_(options.policy != SharePolicy::kStore && !options.force_sharing) {}

Result<std::unique_ptr<Planner>> Planner::Create(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                 const PlannerOptions& options, const BackendTraits& traits,
                                                 const MachineModel& machine) {
  COPPICE_ASSIGN_OR_RETURN(const PlanCapacity resolved, ResolveCapacity(spec, capacity));
  if (options.lookahead_tokens < 0 || options.lookahead_tokens > kMaxLookahead) {
    return InvalidArgument("lookahead_tokens is " + std::to_string(options.lookahead_tokens) + ", expected 0 to " +
                           std::to_string(kMaxLookahead));
  }
  std::unique_ptr<Planner> planner(new Planner(spec, resolved, options, traits, machine));
  planner->cost_ = CostModel(spec, traits, machine);
  planner->sizes_ = ComputePlanSizes(spec, resolved, traits);
  COPPICE_ASSIGN_OR_RETURN(planner->memory_, Buffer::Allocate(planner->sizes_.host_bytes));
  Arena arena(planner->memory_.data());
  planner->Layout(arena);
  if (planner->optional_) planner->pricer_ = MakeStepPricer(spec, resolved, planner->sizes_, traits, machine);
  return planner;
}

void Planner::Layout(Arena& arena) {
  const int32_t num_nodes = capacity_.max_nodes, num_branches = capacity_.max_branches, num_sets = sizes_.max_merge_sets;
  index_a_.Layout(arena, capacity_);
  index_b_.Layout(arena, capacity_);
  nodes_ = arena.Take<NodePlan>(num_nodes);
  states_above_ = arena.Take<int32_t>(num_nodes);
  ranges_ = arena.Take<StepRange>(num_nodes + num_sets);
  range_of_node_ = arena.Take<int32_t>(num_nodes);
  unshared_.items = arena.Take<StepItem>(num_nodes + num_sets);
  wanted_.items = arena.Take<StepItem>(num_nodes + num_sets);
  dirty_.Layout(arena, num_nodes);
  members_changed_ = arena.Take<uint8_t>(num_nodes);
  relaid_ = arena.Take<uint8_t>(num_nodes + num_sets);
  branch_changed_ = arena.Take<uint8_t>(num_branches);
  owners_ = arena.Take<Owner>(num_nodes + num_sets);
  emitted_ = arena.Take<Geometry>(num_nodes + num_sets);
  needs_ = arena.Take<Needs>(num_nodes + num_sets);
  blocks_ = arena.Take<Blocks>(num_nodes + num_sets);
  branch_sets_ = arena.Take<int32_t>(num_branches);
  next_set_ = arena.Take<int32_t>(num_sets);
  free_sets_ = arena.Take<int32_t>(num_sets);
  set_capacity_ = arena.Take<int32_t>(num_sets);
  set_touched_ = arena.Take<uint8_t>(num_sets);
  touched_below_ = arena.Take<int32_t>(num_nodes);
  hold_min_ = arena.Take<int32_t>(num_branches);
  hold_max_ = arena.Take<int32_t>(num_branches);
  grows_ = arena.Take<uint8_t>(num_branches);
  min_len_ = arena.Take<int32_t>(num_branches);
  max_len_ = arena.Take<int32_t>(num_branches);
  open_reads_ = arena.Take<int32_t>(num_branches);
  row_tiles_ = arena.Take<int32_t>(num_branches);
  class_begin_ = arena.Take<int32_t>(2 * kNumClasses);
  item_class_ = arena.Take<uint16_t>(sizes_.max_items);
  item_pool_.Layout(arena, sizes_.max_items);
  member_pool_.Layout(arena, sizes_.max_members);
  contribution_pool_.Layout(arena, sizes_.max_contributions);
  state_pool_.Layout(arena, sizes_.max_states / spec_.num_kv_heads);
  items_ = arena.Take<WorkItem>(sizes_.max_items);
  members_ = arena.Take<int32_t>(sizes_.max_members);
  sets_ = arena.Take<MergeSet>(num_sets);
  contributions_ = arena.Take<Contribution>(sizes_.max_contributions);
  compute_queue_ = arena.Take<int32_t>(sizes_.max_items);
  bandwidth_queue_ = arena.Take<int32_t>(sizes_.max_items);
}

int32_t Planner::NumTiles(int32_t branch) const {
  return branch_sets_[branch] <= tile_sets_ ? (branch_sets_[branch] > 0)
                                            : static_cast<int32_t>(CeilDiv(branch_sets_[branch], tile_sets_));
}

Status Planner::Update(const PrefixForestView& forest) {
  if (const std::optional<int32_t> steps_left = StillHolds(forest)) {
    COPPICE_RETURN_IF_ERROR(index_->CheckStep(forest, capacity_));
    steps_left_ = *steps_left;
    forest_ = forest;
    ++updates_skipped_;
    return OkStatus();
  }
  COPPICE_RETURN_IF_ERROR(previous_->Build(forest, capacity_));
  std::swap(index_, previous_);
  forest_ = forest;
  Replan();
  ++updates_replanned_;
  return OkStatus();
}

// The steps left if the plan at hand is one for this forest too. What one step may change is for ForestIndex::CheckStep.
std::optional<int32_t> Planner::StillHolds(const PrefixForestView& forest) const {
  if (!planned_ || forest.version != forest_.version || forest.page_size != forest_.page_size ||
      forest.query_tree_mask.empty() == index_->has_tree_mask() ||
      forest.node_parent.size() != static_cast<size_t>(index_->num_nodes()) ||
      forest.branch_node.size() != static_cast<size_t>(index_->num_branches()) ||
      forest.branch_kv_len.size() != forest.branch_node.size() || forest.branch_query_count.size() != forest.branch_node.size()) {
    return std::nullopt;
  }
  const size_t num_branches = forest.branch_kv_len.size();
  uint32_t outside = 0, steps = INT32_MAX;
  for (size_t b = 0; b < num_branches; ++b) {
    const uint32_t length = static_cast<uint32_t>(forest.branch_kv_len[b]);
    const uint32_t shortest = static_cast<uint32_t>(min_len_[b]), longest = static_cast<uint32_t>(max_len_[b]);
    outside |= length - shortest > longest - shortest;
    outside |= forest.branch_query_count[b] != index_->query_count[b];
    outside |= forest.branch_node[b] != index_->branch_node[b];
    steps = std::min(steps, longest - length);  // wraps to a large number where any length will do
  }
  if (outside != 0) return std::nullopt;
  return static_cast<int32_t>(steps);
}

void Planner::Replan() {
  nodes_replanned_ = sets_replanned_ = 0;
  FindChanges();
  SumUpwards();
  SetPrices();
  if (pressure_ > 0) MarkAll();
  FindChains();
  for (pressure_ = 0;; ++pressure_) {
    Decide();
    ListItems();
    JudgeStep();
    AssignRanges();
    SetGrain();
    SplitOwners();
    if (Fits()) break;
    COPPICE_CHECK(pressure_ < kMaxPressure);  // one unsplit item per tile always fits
    MarkAll();
  }
  if (!Emit()) {  // the pools are fragmented: lay everything out afresh
    ReleaseBlocks();
    COPPICE_CHECK(Emit());
  }
  FillQueues();
  FinishLengths();
  planned_ = true;
}

PlanView Planner::View() const {
  return {.spec = spec_,
          .page_size = capacity_.page_size,
          .items = items_.first(item_pool_.used()),
          .members = members_.first(member_pool_.used()),
          .merge_sets = sets_,
          .contributions = contributions_.first(contribution_pool_.used()),
          .compute_queue = compute_queue_.first(num_compute_),
          .bandwidth_queue = bandwidth_queue_.first(num_bandwidth_),
          .num_states = state_pool_.used() * spec_.num_kv_heads,
          .revision = static_cast<uint64_t>(updates_replanned_)};
}

Load Planner::TotalLoad() const {
  return {.memory_ns = static_cast<double>(total_needs_.memory_ps) * 1e-3,
          .compute_ns = static_cast<double>(total_needs_.compute_ps) * 1e-3,
          .overhead_ns = static_cast<double>(total_needs_.overhead_ps) * 1e-3};
}

}  // namespace coppice::attention
