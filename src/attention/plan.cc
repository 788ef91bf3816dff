// The planner's stages: find changes, sum the tree upwards, decide share or absorb, assign ranges, split, emit, queue.
// Every replanning runs the same stages; what did not change is recognised and left in place. Layer: attention.
#include "attention/plan.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "core/check.h"

namespace coppice::attention {
namespace {

// Tasks a worker should have, so that longest-first order evens out the rest.
constexpr double kTasksPerWorker = 3;
// A piece is no shorter than this multiple of what cutting it off costs: on a GPU, and where steps are sums, which do not know how
// far a state has to go between cores.
constexpr double kMinPieceOverhead = 4, kMinSumPieceOverhead = 6;
// A task takes several kv heads until it lasts this many starts.
constexpr double kMinTaskStarts = 8;
// Halvings of splitting, then of sharing too, before giving both up to fit a capacity.
constexpr int32_t kOnlyCoarser = 2, kMaxPressure = 12;
// Of a step that shares nothing: where latencies count, a step that shares must be predicted to end before this part of it.
constexpr double kLeastStepGain = 0.91;
// So that kv indices ahead fit 32 bits.
constexpr int32_t kMaxLookahead = 1 << 20;
// Rounding of a leaf's own tokens, see PlannedClass.
constexpr uint32_t kShortestLeaf = 64, kShortLeaf = 512;

// Slots of the arrays of a forest and of the one before it.
struct Slots {
  int32_t now, old;
};
// f(i) for the slots that are not the same in both. Most are, which whole blocks tell at once. changed(i) is 0 where nothing is.
template <class Changed, class F>
void ForEachChanged(Slots slots, Changed&& changed, F&& f) {
  constexpr int32_t kBlock = 32;
  const int32_t common = std::min(slots.now, slots.old), count = std::max(slots.now, slots.old);
  for (int32_t begin = 0; begin < count; begin += kBlock) {
    const int32_t end = std::min(begin + kBlock, count);
    uint32_t any = end > common;
    if (any == 0) {
      for (int32_t i = begin; i < end; ++i) any |= changed(i);
    }
    if (any == 0) continue;
    for (int32_t i = begin; i < end; ++i) {
      if (i >= common || changed(i) != 0) f(i);
    }
  }
}

constexpr int32_t AlignDown(int32_t value, int32_t unit) { return value / unit * unit; }

// The power of 2^(1/4) at or above `value`: changes by at least 19 %, so that small edits leave it alone.
double Quantise(double value) { return value <= 0 ? 0 : std::exp2(std::ceil(4 * std::log2(value)) / 4); }

// Sums that edits add to and subtract from are integers (picoseconds), so that they do not drift from a fresh plan's.
int64_t Picoseconds(double ns) { return static_cast<int64_t>(ns * 1e3 + 0.5); }

// Time classes of the queues: 16 an octave, that is 6 % apart.
constexpr int32_t kNumClasses = 32 * 16;
constexpr uint16_t kNoClass = UINT16_MAX;
int32_t TimeClass(uint32_t ns) {
  if (ns < 16) return static_cast<int32_t>(ns);
  const int32_t octave = std::bit_width(ns) - 1;
  return octave * 16 + static_cast<int32_t>((ns >> (octave - 4)) & 15);
}

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

// ------------------------------------------------------------------------------------------------------------ sizes and memory

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
      share_unit_(spec.deterministic ? kDeterministicUnit : 1),
      window_unit_(spec.deterministic ? kDeterministicUnit : RoundUp(64, traits.kv_tile)),
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
  return planner;
}

void Planner::Layout(Arena& arena) {
  const int32_t num_nodes = capacity_.max_nodes, num_branches = capacity_.max_branches, num_sets = sizes_.max_merge_sets;
  index_a_.Layout(arena, capacity_);
  index_b_.Layout(arena, capacity_);
  nodes_ = arena.Take<NodePlan>(num_nodes);
  states_above_ = arena.Take<int32_t>(num_nodes);
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

// -------------------------------------------------------------------------------------------------------------------- iteration

int32_t Planner::NumTiles(int32_t branch) const {
  return branch_sets_[branch] <= tile_sets_ ? (branch_sets_[branch] > 0)
                                            : static_cast<int32_t>(CeilDiv(branch_sets_[branch], tile_sets_));
}

// ----------------------------------------------------------------------------------------------------------------------- update

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

// ---------------------------------------------------------------------------------------------------------------------- changes

// A dirty node is looked at by every stage. Dirt spreads to ancestors (SumUpwards), and to children where what they inherit
// changed.
void Planner::MarkAll() { dirty_.MarkFirst(static_cast<int32_t>(index_->Preorder().size())); }

void Planner::MarkChildren(int32_t n) {
  for (int32_t c = index_->first_child[n]; c >= 0; c = index_->next_sibling[c]) dirty_.Mark(index_->position[c]);
}

void Planner::ReleaseBlocks() {
  item_pool_.Clear();
  member_pool_.Clear();
  contribution_pool_.Clear();
  state_pool_.Clear();
  std::ranges::fill(emitted_, Geometry{});
  std::ranges::fill(blocks_, Blocks{});
  std::ranges::fill(set_capacity_, 0);
  MarkAll();
}

void Planner::FindChanges() {
  dirty_.Clear();
  std::ranges::fill(members_changed_, 0);
  std::ranges::fill(branch_changed_, 0);
  if (!planned_) {
    ReleaseBlocks();
    num_free_sets_ = 0;
    for (int32_t set = sizes_.max_merge_sets - 1; set >= capacity_.max_branches; --set) free_sets_[num_free_sets_++] = set;
    std::ranges::fill(hold_min_, INT32_MIN);
    std::ranges::fill(hold_max_, INT32_MAX);
    for (int32_t b = 0; b < index_->num_branches(); ++b) CreateSets(b, index_->query_count[b]);
    return;
  }
  const ForestIndex &now = *index_, &old = *previous_;
  const auto mark = [&](int32_t n) {
    if (n < 0 || n >= now.num_nodes() || now.parent[n] == kFreeSlot) return;
    dirty_.Mark(now.position[n]);
    members_changed_[n] = 1;
  };
  const Slots nodes = {.now = now.num_nodes(), .old = old.num_nodes()};
  const auto differ = [](std::span<const int32_t> a, std::span<const int32_t> b) {
    return [a = a.data(), b = b.data()](int32_t i) { return static_cast<uint32_t>(a[i] ^ b[i]); };
  };
  const auto parent = differ(now.parent, old.parent), begin = differ(now.begin, old.begin), end = differ(now.end, old.end);
  const auto node_changed = [&](int32_t n) { return parent(n) | begin(n) | end(n); };
  ForEachChanged(nodes, node_changed, [&](int32_t n) {
    const int32_t new_parent = n < nodes.now ? now.parent[n] : kFreeSlot;
    const int32_t old_parent = n < nodes.old ? old.parent[n] : kFreeSlot;
    mark(n);
    mark(new_parent);
    mark(old_parent);
    if (new_parent == kFreeSlot && old_parent != kFreeSlot) {
      RetireOwner(n);
      step_tokens_ -= nodes_[n].step_tokens;
      step_compute_ps_ -= nodes_[n].step_compute_ps;
      SetReadTokens(nodes_[n], 0);
      CountDecision(nodes_[n], -1);
      nodes_[n] = {};
    }
  });
  const Slots branches = {.now = now.num_branches(), .old = old.num_branches()};
  const auto count_of = [](const ForestIndex& index, int32_t b) { return b < index.num_branches() ? index.query_count[b] : 0; };
  // All of them give back before anyone takes: merge sets suffice for one step's queries.
  const auto count = differ(now.query_count, old.query_count), node = differ(now.branch_node, old.branch_node);
  ForEachChanged(branches, count, [&](int32_t b) { RetireBranch(b); });
  const auto branch_changed = [&, length = now.kv_len.data(), least = hold_min_.data(), most = hold_max_.data()](int32_t b) {
    return count(b) | node(b) | static_cast<uint32_t>(length[b] < least[b]) | static_cast<uint32_t>(length[b] > most[b]);
  };
  ForEachChanged(branches, branch_changed, [&](int32_t b) {
    const int32_t new_count = count_of(now, b), old_count = count_of(old, b);
    if (new_count == 0 && old_count == 0) return;
    const int32_t new_node = new_count > 0 ? now.branch_node[b] : kFreeSlot;
    const int32_t old_node = old_count > 0 ? old.branch_node[b] : kFreeSlot;
    if (new_count == old_count && new_node == old_node) {  // its length matters
      dirty_.Mark(now.position[new_node]);
      return;
    }
    if (new_count != old_count) CreateSets(b, new_count);
    branch_changed_[b] = 1;
    mark(new_node);
    mark(old_node);
  });
  if (now.has_tree_mask() != old.has_tree_mask()) MarkAll();
  if (options_.policy == SharePolicy::kOneLevel && now.ActiveBranches().size() != old.ActiveBranches().size()) MarkAll();
}

// Finds the lengths of a branch that would change nothing but the live end of its last item.
void Planner::HoldLengths(int32_t b) {
  const int32_t n = index_->branch_node[b], length = index_->kv_len[b], count = index_->query_count[b];
  const int32_t leaf_begin = index_->begin[n];
  grows_[b] = Grows(b);
  hold_min_[b] = hold_max_[b] = length;
  const bool queries_in_shared_node = length - count < leaf_begin;
  if (!grows_[b] || spec_.window > 0 || queries_in_shared_node || owners_[TileOwner(b)].pieces > 1) return;
  const LengthClass planned = PlannedClass(leaf_begin, length);
  hold_min_[b] = std::max(planned.first, leaf_begin + count);
  hold_max_[b] = planned.last;
}

void Planner::CreateSets(int32_t branch, int32_t query_count) {
  const int32_t count = static_cast<int32_t>(CeilDiv(query_count, set_queries_));
  branch_sets_[branch] = count;
  int32_t previous = -1;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t set = i == 0 ? branch : free_sets_[--num_free_sets_];
    const int32_t first = i * set_queries_;
    sets_[set] = {.branch = branch, .query_begin = first, .query_count = std::min(set_queries_, query_count - first)};
    set_capacity_[set] = 0;
    if (previous >= 0) next_set_[previous] = set;
    next_set_[set] = -1;
    previous = set;
  }
  CountBranch(branch, query_count, 1);
}

void Planner::RetireBranch(int32_t branch) {
  int32_t set = branch, query_count = 0;
  for (int32_t i = 0; i < branch_sets_[branch]; ++i) {
    const int32_t next = next_set_[set];
    query_count += sets_[set].query_count;
    CountContributions(sets_[set], -1);
    RetireOwner(TileOwner(set));
    contribution_pool_.Free(sets_[set].contribution_begin, set_capacity_[set]);
    set_capacity_[set] = 0;
    sets_[set] = {};
    if (i > 0) free_sets_[num_free_sets_++] = set;
    set = next;
  }
  CountBranch(branch, query_count, -1);
  branch_sets_[branch] = 0;
  grows_[branch] = 0;
  hold_min_[branch] = INT32_MIN;
  hold_max_[branch] = INT32_MAX;
}

void Planner::RetireOwner(int32_t owner) {
  FreeBlocks(owner);
  SetOwner(owner, {});
  SetNeeds(owner, {});
  SetItem(unshared_, owner, {});
  SetItem(wanted_, owner, {});
}

void Planner::SetOwner(int32_t id, const Owner& owner) {
  step_ps_ -= owners_[id].step_ps;
  owners_[id] = owner;
  step_ps_ += owner.step_ps;
}

void Planner::SetNeeds(int32_t owner, const Needs& needs) {
  total_needs_ -= needs_[owner];
  needs_[owner] = needs;
  total_needs_ += needs;
}

// ------------------------------------------------------------------------------------------------------------------ tree passes

// Rows, sets, consumers and query positions of changed subtrees; ancestors of a change are changed.
void Planner::SumUpwards() {
  ForEachDirtyUpwards([&](int32_t n) {
    SumNode(n);
    const int32_t p = index_->parent[n];
    if (p == kNoParent) return;
    dirty_.Mark(index_->position[p]);
    members_changed_[p] |= members_changed_[n];
  });
}

void Planner::SumNode(int32_t n) {
  NodePlan& node = nodes_[n];
  node.rows = node.num_sets = node.num_consumers = 0;
  node.min_query = INT32_MAX;
  node.max_query = -1;
  const int32_t begin = AlignShare(index_->begin[n]);
  node.share_end = IsLive(n) ? begin : AlignShare(index_->end[n]);
  for (int32_t b : BranchesAt(n)) {
    const int32_t count = index_->query_count[b], tiles = NumTiles(b), first_query = index_->kv_len[b] - count;
    node.rows += count * spec_.group_size();
    node.num_sets += branch_sets_[b];
    node.num_consumers += tiles;
    node.min_query = std::min(node.min_query, first_query);
    node.max_query = std::max(node.max_query, index_->kv_len[b] - 1);
    // The row tiles of a prompt chunk share what lies before the chunk.
    if (IsLive(n) && tiles > 1) node.share_end = std::max(begin, AlignDown(first_query, std::max(share_unit_, traits_.kv_tile)));
    if (!JudgesSteps()) continue;
    const bool grows = Grows(b);
    ForEachTile(b, [&](const Tile& tile) {
      const int32_t min_query = first_query + tile.first_query, end = min_query + tile.num_queries;
      SetItem(unshared_, tile.owner,
              {.rows = tile.num_queries * spec_.group_size(),
               .begin = VisibleBegin(min_query),
               .end = grows ? PlannedClass(index_->begin[n], end).typical : end,
               .num_sets = tile.num_sets,
               .items = 1});
    });
  }
  for (int32_t c = index_->first_child[n]; c >= 0; c = index_->next_sibling[c]) {
    const NodePlan& child = nodes_[c];
    if (child.rows == 0) continue;
    node.rows += child.rows;
    node.num_sets += child.num_sets;
    node.num_consumers += 1;
    node.min_query = std::min(node.min_query, child.min_query);
    node.max_query = std::max(node.max_query, child.max_query);
  }
  // Its part of the step if everything were shared, and of any step.
  step_tokens_ -= node.step_tokens;
  step_compute_ps_ -= node.step_compute_ps;
  node.step_tokens = node.step_compute_ps = 0;
  int64_t read_tokens = 0;
  if (node.rows > 0) {
    const int32_t node_begin = index_->begin[n], first_read = std::max(node_begin, VisibleBegin(node.min_query));
    int32_t end = index_->end[n], typical_end = end;
    if (IsLive(n)) {
      const LengthClass lengths = PlannedClass(node_begin, node.max_query + 1);
      end = lengths.planned, typical_end = lengths.typical;
    }
    node.step_tokens = std::max(0, end - first_read);
    node.step_compute_ps = node.step_tokens * CostsOf(node.rows).compute_ps;
    read_tokens = std::max(0, typical_end - first_read);
  }
  step_tokens_ += node.step_tokens;
  step_compute_ps_ += node.step_compute_ps;
  if (JudgesSteps()) SetReadTokens(node, read_tokens);
}

// Memory and compute time of the step if everything were shared. The resource that binds has price 1; what the other one has to
// spare makes it cheaper, down to a quarter (not to nothing: many nodes could each spend the same slack). Steps of two keep
// prices, and with them the decisions of unchanged nodes, stable.
//
// Where the machine's latencies are known, reads of tokens that others read too have the price that they have for a step that
// shares nothing, and dense tiles that of their time: there they and streaming follow each other.
void Planner::SetPrices() {
  if (cost_.has_latencies()) {
    const double reread_price = std::ceil(8 * cost_.RereadPrice(unshared_.shape)) / 8;
    if (reread_price != memory_price_) MarkAll();
    memory_price_ = reread_price;
    return;
  }
  const double memory = static_cast<double>(step_tokens_) * cost_.ReadNs(), compute = static_cast<double>(step_compute_ps_) * 1e-3;
  const auto price = [](double mine, double other) { return mine >= other ? 1.0 : mine * 2 >= other ? 0.5 : 0.25; };
  const double memory_price = price(memory, compute), compute_price = price(compute, memory);
  if (memory_price != memory_price_ || compute_price != compute_price_) MarkAll();
  memory_price_ = memory_price;
  compute_price_ = compute_price;
}

// Tokens that the decision at a node is about: its own, and those of ancestors that only this node would read on through.
void Planner::FindChains() {
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = index_->parent[n];
    const bool only = p != kNoParent && nodes_[p].num_consumers == 1;
    node.chain_begin = only ? nodes_[p].chain_begin : AlignShare(index_->begin[n]);
    node.tokens = std::max(0, node.share_end - std::max(node.chain_begin, VisibleBegin(node.min_query)));
    const int32_t chain_below = node.num_consumers == 1 ? node.chain_begin : kLive;
    if (chain_below != std::exchange(node.chain_below, chain_below)) MarkChildren(n);
  });
}

void Planner::Decide() {
  ForEachDirtyUpwards([&](int32_t n) {
    DecideNode(n);
    ++nodes_replanned_;
  });
}

// Share: read the tokens once, multiply all rows at once, and give every merge set below one more partial state. Absorb: each
// item below reads the tokens too, later readers from the cache. The first read is the same in both.
void Planner::DecideNode(int32_t n) {
  NodePlan& node = nodes_[n];
  node.below_reads = 0;
  node.below_compute = 0;
  node.share_ns = node.absorb_ns = 0;
  node.own_reads = 0;
  node.own_compute = 0;
  if (node.rows == 0) {
    node.wanted = Decision::kIdle;
    return;
  }
  for (int32_t b : BranchesAt(n)) {
    ForEachTile(b, [&](const Tile& tile) {
      node.below_reads += 1;
      node.below_compute += CostsOf(tile.num_queries * spec_.group_size()).compute_ns;
    });
  }
  for (int32_t c = index_->first_child[n]; c >= 0; c = index_->next_sibling[c]) {
    node.below_reads += nodes_[c].reads();
    node.below_compute += nodes_[c].compute();
  }
  node.own_reads = CostsOf(node.rows).row_groups;
  node.own_compute = CostsOf(node.rows).compute_ns;

  if (node.tokens == 0 || node.num_consumers == 1) {
    node.wanted = node.tokens == 0 ? Decision::kNothing : Decision::kOnlyConsumer;
    return;
  }
  const double tokens = node.tokens, reread = cost_.RereadNs(node.tokens);
  const auto reads_ns = [&](int32_t reads) { return tokens * memory_price_ * (reads - 1) * reread; };
  node.absorb_ns = reads_ns(node.below_reads) + tokens * compute_price_ * node.below_compute;
  // A set's first merge also costs the state of its own item and the fold. Ancestors, shared by at least as many, pay their part
  // of that: this node's part is its share of the path so far.
  const double first_merge = node.num_sets * cost_.MergeNs() + cost_.StateNs(node.rows);
  node.share_ns = reads_ns(node.own_reads) +
                  static_cast<double>(cost_.ComputedTokens(node.rows, node.tokens)) * compute_price_ * node.own_compute +
                  cost_.StartNs(node.rows) + cost_.StateNs(node.rows) + first_merge * tokens / std::max(1, node.share_end);
  node.wanted = Choose(n);
}

Decision Planner::Choose(int32_t n) const {
  const NodePlan& node = nodes_[n];
  if (options_.policy == SharePolicy::kStore) return Decision::kPolicy;
  if (options_.policy == SharePolicy::kOneLevel && BranchesBelow(n).size() != index_->ActiveBranches().size()) {
    return Decision::kPolicy;
  }
  if (options_.force_sharing && pressure_ <= kOnlyCoarser) return Decision::kForced;
  if (node.share_ns >= node.absorb_ns) return options_.force_sharing ? Decision::kCapacity : Decision::kAbsorbed;
  const int32_t gain = 1 << std::max(0, pressure_ - kOnlyCoarser);
  if (pressure_ == kMaxPressure || node.share_ns * gain >= node.absorb_ns) return Decision::kCapacity;
  return Decision::kShared;
}

// ------------------------------------------------------------------------------------------------------------------- whole steps

void Planner::CountItem(const StepItem& item, int64_t sign, StepShape& shape) const {
  if (item.rows == 0) return;
  const RowCosts& costs = CostsOf(item.rows);
  const int64_t tokens = sign * item.tokens();
  shape.item_tokens += costs.row_groups * tokens;
  shape.item_misses += sign * costs.row_groups * cost_.Misses(item.tokens());
  shape.item_starts += sign * costs.row_groups;
  if (costs.dense_tasks > 0) {
    shape.dense_tasks += sign * costs.dense_tasks;
    shape.dense_row_tokens += sign * costs.computed_rows * cost_.ComputedTokens(item.rows, item.tokens());
    shape.dense_item_tokens += tokens;
  } else {
    shape.stream_tasks += sign;
    shape.stream_tokens += tokens;
    shape.stream_row_tokens += item.rows * tokens;
    shape.wide_stream_tasks += cost_.IsWide(item.rows) ? sign : 0;
  }
  if (item.num_sets > 0 && item.items > 1) {
    shape.merges += sign * item.num_sets;
    shape.state_rows += sign * item.rows * item.items;
  }
}

void Planner::SetItem(Step& step, int32_t owner, const StepItem& item) {
  StepItem& kept = step.items[owner];
  if (kept == item) return;
  CountItem(kept, -1, step.shape);
  CountItem(item, 1, step.shape);
  kept = item;
  step.changed = true;
}

void Planner::SetReadTokens(NodePlan& node, int64_t tokens) {
  if (node.read_tokens == tokens) return;
  for (Step* step : {&unshared_, &wanted_}) {
    step->shape.read_tokens += tokens - node.read_tokens;
    step->shape.read_misses += cost_.Misses(tokens) - cost_.Misses(node.read_tokens);
    step->changed = true;
  }
  node.read_tokens = tokens;
}

// From the roots down: the items of the step as the nodes want them.
void Planner::ListItems() {
  if (!JudgesSteps()) return;
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = index_->parent[n];
    int32_t begin = p == kNoParent ? 0 : nodes_[p].items_begin, above = p == kNoParent ? 0 : nodes_[p].items_above;
    StepItem shared;
    if (NodePlan::Shares(node.wanted)) {
      shared = {.rows = node.rows, .begin = std::max(begin, VisibleBegin(node.min_query)), .end = node.share_end};
      begin = node.share_end;
      above += 1;
    }
    SetItem(wanted_, n, shared);
    if (begin != node.items_begin || above != node.items_above) MarkChildren(n);
    node.items_begin = begin;
    node.items_above = above;
    for (int32_t b : BranchesAt(n)) {
      ForEachTile(b, [&](const Tile& tile) {
        StepItem item = unshared_.items[tile.owner];
        item.begin = std::max(item.begin, begin);
        item.items += above;
        SetItem(wanted_, tile.owner, item);
      });
    }
  });
}

// The decisions above weigh sums of work, one node at a time. The whole step also has to end sooner than if nothing were shared: a
// GPU's short one may wait longer for a merge than it saves in reading, and prices are no times.
void Planner::JudgeStep() {
  bool pays = true;
  if (JudgesSteps()) {
    PredictStep(wanted_);
    if (optional_ && wanted_.shape.merges > 0) {
      const double least_gain = cost_.has_latencies() ? kLeastStepGain : 1.0;
      // Its chains only make the other step longer: where sharing pays without them there is no need to look for them.
      pays = wanted_.ns < least_gain * cost_.StepNs(unshared_.shape, {});
      if (!pays) {
        PredictStep(unshared_);
        pays = wanted_.ns < least_gain * unshared_.ns;
      }
    }
    step_ns_ = pays ? wanted_.ns : unshared_.ns;
  }
  if (pays != sharing_pays_) MarkAll();
  sharing_pays_ = pays;
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    CountDecision(node, -1);
    node.decision = !pays && node.wanted == Decision::kShared ? Decision::kNoGain : node.wanted;
    CountDecision(node, 1);
  });
}

void Planner::PredictStep(Step& step) {
  if (!std::exchange(step.changed, false)) return;
  step.ns = cost_.StepNs(step.shape, cost_.has_latencies() ? ChainsOf(step) : StepChains{});
}

StepChains Planner::ChainsOf(const Step& step) {
  StepChains chains;
  const int64_t shortest = cost_.ShortestStreamPiece(step.shape);
  const auto add = [&](const StepItem& item, int32_t states_above) {
    const ItemCut& cut = CutOf(item.rows, item.tokens(), shortest);
    const int32_t states = states_above + cut.pieces.count;
    const double fold_ns = states > 1 ? cut.fold_ns + states * cut.fold_state_ns : 0;
    if (cut.dense_tasks > 0) {
      chains.dense_pieces += cut.dense_tasks * cut.pieces.count;
      chains.longest_dense_ns = std::max(chains.longest_dense_ns, cut.pieces.ns + fold_ns);
    } else {
      chains.stream_pieces += cut.pieces.count;
      chains.longest_stream_ns = std::max(chains.longest_stream_ns, cut.pieces.ns);
      chains.longest_fold_ns = std::max(chains.longest_fold_ns, fold_ns);
    }
    return cut.pieces.count;
  };
  const bool shares = step.shape.merges > 0;
  if (shares) {
    for (int32_t n : index_->Preorder()) {
      const int32_t p = index_->parent[n], above = p == kNoParent ? 0 : states_above_[p];
      // The least that a shared item's states are folded with is one of a leaf.
      states_above_[n] = above + (step.items[n].rows > 0 ? add(step.items[n], above + 1) : 0);
    }
  }
  for (int32_t b : index_->ActiveBranches()) {
    const int32_t above = shares ? states_above_[index_->branch_node[b]] : 0;
    if (branch_sets_[b] <= tile_sets_) {
      add(step.items[TileOwner(b)], above);
    } else {
      ForEachTile(b, [&](const Tile& tile) { add(step.items[tile.owner], above); });
    }
  }
  return chains;
}

Planner::ItemCut Planner::ComputeItemCut(int32_t rows, int32_t tokens, int64_t shortest) const {
  const double fold_ns = cost_.FoldNs(rows, 0);
  return {.rows = rows,
          .tokens = tokens,
          .shortest = shortest,
          .pieces = cost_.Cut(rows, tokens, shortest),
          .dense_tasks = cost_.DenseTasks(rows),
          .fold_ns = fold_ns,
          .fold_state_ns = cost_.FoldNs(rows, 1) - fold_ns};
}

void Planner::CountDecision(const NodePlan& node, int32_t sign) {
  shared_nodes_ += node.shared() ? sign : 0;
  absorbed_nodes_ += node.absorbed() ? sign : 0;
}

// ----------------------------------------------------------------------------------------------------------------------- ranges

// What kLive is taken to be when times are predicted: the leaf's own tokens rounded up to a step, so that growth changes it rarely.
// Octaves up to 512 tokens, where fixed costs dominate; a quarter of that above.
Planner::LengthClass Planner::PlannedClass(int32_t leaf_begin, int32_t kv_len) const {
  const int32_t ahead = options_.lookahead_tokens / 2;
  const uint32_t own = static_cast<uint32_t>(std::max(0, kv_len - leaf_begin) + ahead);
  const uint32_t fine_step = std::bit_floor(own) / 4;
  const uint32_t planned =
      own <= kShortLeaf ? std::max(kShortestLeaf, std::bit_ceil(own)) : (own + fine_step - 1) / fine_step * fine_step;
  const uint32_t step = planned == kShortestLeaf ? kShortestLeaf
                        : planned <= kShortLeaf  ? planned / 2
                                                 : std::bit_floor(planned - 1) / 4;
  const int32_t last = leaf_begin + static_cast<int32_t>(planned) - ahead;
  return {.first = planned == kShortestLeaf ? INT32_MIN : last - static_cast<int32_t>(step) + 1,
          .last = last,
          .planned = last + ahead,
          .typical = std::max(leaf_begin, last - static_cast<int32_t>(step / 2))};
}

int32_t Planner::VisibleBegin(int32_t min_query) const {
  if (spec_.window == 0) return 0;
  return AlignDown(std::max(0, min_query - spec_.window + 1), window_unit_);
}

// From the roots down: what each shared node and each row tile reads. An absorbed node's tokens go to whoever is below it.
void Planner::AssignRanges() {
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = index_->parent[n];
    node.range_begin = p == kNoParent ? 0 : nodes_[p].range_below;
    const int32_t range_below = node.shared() ? node.share_end : node.range_begin;
    if (range_below != std::exchange(node.range_below, range_below)) MarkChildren(n);
    if (node.shared()) {
      Owner owner{Geometry{.begin = std::max(node.range_begin, VisibleBegin(node.min_query)),
                           .end = node.share_end,
                           .rows = node.rows,
                           .num_sets = node.num_sets}};
      owner.planned_end = node.share_end;
      owner.cached_end = node.chain_begin;
      owner.min_query = node.min_query;
      owner.max_query = node.max_query;
      owner.step_ps = Picoseconds(OwnerLoad(owner, 1).RooflineNs());
      SetOwner(n, owner);
    } else if (owners_[n].rows > 0) {
      SetOwner(n, {});
    }
    for (int32_t b : BranchesAt(n)) {
      const int32_t kv_len = index_->kv_len[b], first = kv_len - index_->query_count[b];
      const bool grows = Grows(b);
      ForEachTile(b, [&](const Tile& tile) {
        const int32_t min_query = first + tile.first_query, end = min_query + tile.num_queries;
        Owner owner{Geometry{.begin = std::max(range_below, VisibleBegin(min_query)),
                             .end = tile.last ? kLive : end,
                             .rows = tile.num_queries * spec_.group_size(),
                             .num_sets = tile.num_sets}};
        owner.planned_end = std::max(grows ? PlannedClass(index_->begin[n], kv_len).planned : end, owner.begin);
        owner.cached_end = node.num_consumers == 1 ? node.chain_begin : node.share_end;
        owner.min_query = min_query;
        owner.max_query = end - 1;
        owner.step_ps = Picoseconds(OwnerLoad(owner, 1).RooflineNs());
        const bool nothing_left = !IsLive(n) && owner.begin >= kv_len;  // the shared node has all of it
        SetOwner(tile.owner, nothing_left ? Owner{} : owner);
      });
    }
  });
}

Planner::RowCosts Planner::ComputeRowCosts(int32_t rows) const {
  const double compute_ns = cost_.ComputeNs(rows);
  const double token_ns = std::max(cost_.ReadNs(), compute_ns) * cost_.workers() / spec_.num_kv_heads;
  const double cut_ns =
      cost_.task_fixed_ns() + (cost_.DenseStartNs(rows) + cost_.StateNs(rows)) * cost_.workers() / spec_.num_kv_heads;
  const double shortest = (cost_.has_latencies() ? kMinPieceOverhead : kMinSumPieceOverhead) * cut_ns / token_ns;
  return {.rows = rows,
          .row_groups = static_cast<int32_t>(cost_.RowGroups(rows)),
          .shortest_piece = std::max(2 * traits_.kv_tile, static_cast<int32_t>(std::min(shortest, 1e9))),
          .dense_tasks = cost_.DenseTasks(rows),
          .computed_rows = cost_.ComputedRows(rows),
          .compute_ps = Picoseconds(compute_ns),
          .compute_ns = compute_ns,
          .token_ns = token_ns};
}

// What an owner's range costs if it is cut into this many pieces; its first row group reads what others do not from memory.
Load Planner::OwnerLoad(const Owner& owner, int32_t pieces) const {
  const RowCosts& costs = CostsOf(owner.rows);
  const int32_t groups = std::max(owner.row_groups, costs.row_groups), tokens = owner.planned_end - owner.begin;
  const int32_t cached = std::clamp(owner.cached_end - owner.begin, 0, tokens);
  Load load{.memory_ns = (tokens - cached) * cost_.ReadNs(),
            .compute_ns = tokens * costs.compute_ns,
            .overhead_ns = groups * pieces * cost_.ItemNs() + pieces * cost_.DenseStartNs(owner.rows)};
  if (cached > 0 || groups > 1) load.memory_ns += (cached + double{1} * tokens * (groups - 1)) * cost_.RereadNs(tokens);
  return load;
}

// No task should be long beside a worker's part of the step.
void Planner::SetGrain() {
  const double grain =
      std::max(Quantise(static_cast<double>(step_ps_) * 1e-3 / kTasksPerWorker), kMinTaskStarts * cost_.task_fixed_ns()) *
      (1 << pressure_);
  if (grain != grain_ns_) MarkAll();
  grain_ns_ = grain;
}

// Cuts ranges to the grain and adds up what the layout needs.
void Planner::SplitOwners() {
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = index_->parent[n];
    const int32_t above = p == kNoParent ? 0 : nodes_[p].num_contributions;
    Owner& owner = owners_[n];
    Needs needs;
    if (owner.rows > 0) {
      owner.contributions_above = above;
      ShapeOwner(owner, n);
      const bool ends_here = !IsLive(n) && node.share_end == index_->end[n] && BranchesAt(n).size() == BranchesBelow(n).size();
      owner.writes_states = above + owner.pieces > 1 || !ends_here;
      needs = NeedsOf(owner);
    } else if (node.absorbed()) {  // its first reader
      needs.memory_ps = Picoseconds(node.tokens * (cost_.ReadNs() - cost_.RereadNs(node.tokens)));
    }
    SetNeeds(n, needs);
    const int32_t contributions = above + owner.pieces;
    if (contributions != std::exchange(node.num_contributions, contributions)) MarkChildren(n);
    for (int32_t b : BranchesAt(n)) {
      ForEachTile(b, [&](const Tile& tile) {
        Owner& own = owners_[tile.owner];
        own.contributions_above = contributions;
        if (own.rows > 0) ShapeOwner(own, tile.owner);
        const int32_t total = contributions + own.pieces;
        own.writes_states = total > 1;
        Needs own_needs = NeedsOf(own);
        own_needs.contributions = tile.num_sets * BlockPool::Rounded(total);
        own_needs.too_deep = traits_.max_set_contributions > 0 && total > traits_.max_set_contributions;
        if (total > 1) own_needs.overhead_ps += Picoseconds(tile.num_sets * cost_.MergeNs());
        SetNeeds(tile.owner, own_needs);
      });
    }
  });
}

Planner::Needs Planner::NeedsOf(const Owner& owner) const {
  if (owner.pieces == 0) return {};
  const Load load = OwnerLoad(owner, owner.pieces);
  Needs needs{.memory_ps = Picoseconds(load.memory_ns),
              .compute_ps = Picoseconds(load.compute_ns),
              .overhead_ps = Picoseconds(load.overhead_ns),
              .items = BlockPool::Rounded(owner.num_items()),
              .members = BlockPool::Rounded(owner.num_sets)};
  if (owner.writes_states) {
    const int64_t states = int64_t{owner.pieces} * owner.rows;
    needs.states = states > sizes_.max_states ? states : BlockPool::Rounded(static_cast<int32_t>(states));  // more never fit
    needs.overhead_ps += Picoseconds(owner.pieces * cost_.StateNs(owner.rows));
  }
  return needs;
}

bool Planner::Fits() const {
  return total_needs_.too_deep == 0 && total_needs_.items <= sizes_.max_items && total_needs_.members <= sizes_.max_members &&
         total_needs_.contributions <= sizes_.max_contributions && total_needs_.states <= sizes_.max_states / spec_.num_kv_heads;
}

// Pieces along KV, groups along the rows, kv heads per task.
void Planner::ShapeOwner(Owner& owner, int32_t owner_id) const {
  const int32_t tokens = owner.planned_end - owner.begin;
  const RowCosts& all_rows = CostsOf(owner.rows);
  // Of one head on one worker. Where steps are sums, what the step counts: tokens that others read too come from the cache.
  const double whole_ns = cost_.has_latencies() ? tokens * all_rows.token_ns + cost_.task_fixed_ns()
                                                : static_cast<double>(owner.step_ps) * 1e-3 * cost_.workers() / spec_.num_kv_heads;
  int32_t wanted = all_rows.row_groups, groups = wanted;
  if (whole_ns > groups * grain_ns_) {
    wanted = static_cast<int32_t>(std::min(whole_ns / grain_ns_, 65536.0)) + 1;
    // Cutting rows reads the range again, from the cache; cutting KV writes more states. Take the cheaper. Whoever forces sharing
    // wants each token read once.
    const int32_t by_rows = std::min(wanted, static_cast<int32_t>(CeilDiv(owner.rows, traits_.dense_tile_rows)));
    if (by_rows > groups && !options_.force_sharing) {
      const double reread_ns = double{1} * (by_rows - groups) * tokens * cost_.RereadNs(tokens);
      const double state_ns = static_cast<double>(CeilDiv(wanted, groups) - 1) * cost_.StateNs(owner.rows);
      if (reread_ns <= state_ns) groups = by_rows;
    }
  }
  owner.row_groups = 1;
  owner.group_rows = INT32_MAX;
  if (groups > 1) {
    owner.group_rows = RoundUp(static_cast<int32_t>(CeilDiv(owner.rows, groups)), traits_.dense_tile_rows);
    if (traits_.max_item_rows > 0) owner.group_rows = std::min(owner.group_rows, traits_.max_item_rows);
    owner.row_groups = 0;
    ForEachRowGroup(owner_id, owner.group_rows, [&](const RowGroup&) { ++owner.row_groups; });
  }
  const RowCosts& group = owner.row_groups == 1 ? all_rows : CostsOf(static_cast<int32_t>(CeilDiv(owner.rows, owner.row_groups)));
  int32_t pieces = 1;
  if (wanted > owner.row_groups && pressure_ < kMaxPressure && (!traits_.cuts_kv || spec_.deterministic)) {
    pieces = std::clamp(static_cast<int32_t>(CeilDiv(wanted, owner.row_groups)), 1, std::max(1, tokens / group.shortest_piece));
  }
  CutRange(owner, owner_id >= capacity_.max_nodes, pieces);

  const double piece_ns = group.token_ns * tokens / owner.pieces + cost_.task_fixed_ns();
  const double least = kMinTaskStarts * cost_.task_fixed_ns();
  const int32_t heads = least <= piece_ns ? 1 : static_cast<int32_t>(std::min(least / piece_ns + 1, grain_ns_ / piece_ns));
  const int32_t most =
      traits_.max_heads_per_task > 0 ? std::min(traits_.max_heads_per_task, spec_.num_kv_heads) : spec_.num_kv_heads;
  owner.heads_per_task = std::clamp(heads, 1, most);
}

// Cuts at absolute multiples: of the KV tile, or where deterministic mode allows (plan.h, (a) to (d)).
void Planner::CutRange(Owner& owner, bool is_tile, int32_t pieces) const {
  owner.unit_pieces = 0;
  if (!spec_.deterministic) {
    owner.pieces = 1;
    owner.first_cut = owner.chunk = 0;
    if (pieces == 1) return;
    const int32_t base = AlignDown(owner.begin, traits_.kv_tile);
    owner.chunk =
        std::max(traits_.kv_tile, RoundUp(static_cast<int32_t>(CeilDiv(owner.planned_end - base, pieces)), traits_.kv_tile));
    owner.first_cut = base + owner.chunk;
    owner.pieces = std::max(1, static_cast<int32_t>(CeilDiv(owner.planned_end - base, owner.chunk)));
    return;
  }
  owner.chunk = kDeterministicSuperblock;
  if (is_tile && owner.contributions_above == 0 && pieces == 1) {  // (d)
    owner.pieces = 1;
    owner.first_cut = owner.chunk = 0;
    return;
  }
  // A live range is laid out as far as it may grow before the next Update.
  const int32_t end = owner.end == kLive ? RoundUp(owner.planned_end + options_.lookahead_tokens, kDeterministicUnit) : owner.end;
  owner.first_cut = RoundUp(owner.begin, kDeterministicSuperblock);
  // (b) units up to the next superblock, (a) superblocks from there on.
  owner.unit_pieces = static_cast<int32_t>(CeilDiv(std::min(owner.first_cut, end) - owner.begin, kDeterministicUnit));
  const int32_t superblocks = static_cast<int32_t>(CeilDiv(std::max(0, end - owner.first_cut), kDeterministicSuperblock));
  owner.pieces = std::max(1, owner.unit_pieces + superblocks);
  if (owner.unit_pieces > 0) return;
  int32_t first_superblocks = 1;
  if (owner.contributions_above == 0) {  // (c): the first item takes the whole superblocks that need no cut
    const int32_t whole = (end - owner.begin) / kDeterministicSuperblock;
    first_superblocks = std::clamp(superblocks - pieces + 1, 1, std::max(1, whole));
    owner.pieces = std::max(1, 1 + superblocks - first_superblocks);
  }
  owner.first_cut = owner.begin + first_superblocks * kDeterministicSuperblock;
}

int32_t Planner::PieceBegin(const Owner& owner, int32_t piece) {
  if (piece == 0) return owner.begin;
  if (piece < owner.unit_pieces) return owner.begin + piece * kDeterministicUnit;
  return owner.first_cut + (piece - std::max(1, owner.unit_pieces)) * owner.chunk;
}

// --------------------------------------------------------------------------------------------------------------------- emission

// Lays out every owner whose work changed and refreshes the flags and times of dirty ones.
bool Planner::Emit() {
  std::ranges::fill(set_touched_, 0);
  // Give back first, so that the new layout finds room.
  const auto give_back = [&](int32_t owner, bool members_changed) {
    relaid_[owner] = members_changed || !(owners_[owner] == emitted_[owner]);
    if (relaid_[owner]) FreeBlocks(owner);
  };
  ForEachDirty([&](int32_t n) {
    touched_below_[n] = 0;
    give_back(n, members_changed_[n] && owners_[n].pieces > 0);
    for (int32_t b : BranchesAt(n)) ForEachTile(b, [&](const Tile& tile) { give_back(tile.owner, branch_changed_[b]); });
  });
  bool fits = true;
  ForEachDirty([&](int32_t n) {
    fits = fits && EmitOwner(n);
    for (int32_t b : BranchesAt(n)) {
      ForEachTile(b, [&](const Tile& tile) {
        fits = fits && EmitOwner(tile.owner);
        const int32_t total = nodes_[n].num_contributions + owners_[tile.owner].pieces;
        int32_t set = tile.first_set;
        for (int32_t i = 0; i < tile.num_sets; ++i, set = next_set_[set]) {
          if (!branch_changed_[b] && set_capacity_[set] == total) continue;
          fits = fits && ReserveContributions(set, total);
          ++touched_below_[n];
        }
      });
    }
  });
  if (fits) FillContributions();
  return fits;
}

void Planner::FreeBlocks(int32_t owner) {
  Blocks& blocks = blocks_[owner];
  std::ranges::fill(items_.subspan(blocks.items, blocks.num_items), WorkItem{});
  item_pool_.Free(blocks.items, blocks.num_items);
  member_pool_.Free(blocks.members, blocks.num_members);
  state_pool_.Free(blocks.states, blocks.num_states);
  blocks = {};
  emitted_[owner] = {};
}

bool Planner::EmitOwner(int32_t owner_id) {
  const Owner& owner = owners_[owner_id];
  if (owner.pieces == 0) return true;
  Blocks& blocks = blocks_[owner_id];
  if (emitted_[owner_id].pieces == 0) {
    const Blocks wanted{.num_items = owner.num_items(),
                        .num_members = owner.num_sets,
                        .num_states = owner.writes_states ? owner.pieces * owner.rows : 0};
    const int32_t items = item_pool_.Allocate(wanted.num_items);
    const int32_t members = member_pool_.Allocate(wanted.num_members);
    const int32_t states = state_pool_.Allocate(wanted.num_states);
    if (items == BlockPool::kNone || members == BlockPool::kNone || states == BlockPool::kNone) return false;
    blocks = wanted;
    blocks.items = items, blocks.members = members, blocks.states = states;
    int32_t* member = members_.data() + members;
    ForEachMember(owner_id, [&](int32_t set) { *member++ = set; });
  }
  emitted_[owner_id] = owner;
  int32_t k = 0;
  ForEachRowGroup(owner_id, owner.group_rows, [&](const RowGroup& group) {
    for (int32_t piece = 0; piece < owner.pieces; ++piece) {
      const bool last = piece + 1 == owner.pieces;
      const int32_t begin = PieceBegin(owner, piece), end = last ? owner.end : PieceBegin(owner, piece + 1);
      const int32_t tokens = std::max(0, (last ? owner.planned_end : end) - begin);
      const double ns = tokens * CostsOf(group.rows).token_ns * owner.heads_per_task + cost_.task_fixed_ns();
      items_[blocks.items + piece * owner.row_groups + k] = {
          .kind = cost_.KindOf(group.rows),
          .flags = FlagsOf(owner, begin, end),
          .heads_per_task = static_cast<uint16_t>(owner.heads_per_task),
          .page_row = group.branch,
          .kv_begin = begin,
          .kv_end = end,
          .member_begin = blocks.members + group.first_member,
          .member_count = group.num_members,
          .state_begin = owner.writes_states ? (blocks.states + piece * owner.rows + group.first_row) * spec_.num_kv_heads : -1,
          .predicted_ns = static_cast<uint32_t>(std::min(ns, 4e9))};
    }
    ++k;
  });
  return true;
}

// Masked if a row may not see the whole range, now or before the next replanning.
uint8_t Planner::FlagsOf(const Owner& owner, int32_t begin, int32_t end) const {
  const int32_t seen_by_all = owner.min_query + 1;
  const bool live_end_seen = end == kLive && owner.min_query == owner.max_query;
  const bool tail = end > seen_by_all && !live_end_seen;
  const bool window = spec_.window > 0 && begin < owner.max_query + options_.lookahead_tokens - spec_.window + 1;
  const bool draft = index_->has_tree_mask() && end > seen_by_all - 1;
  return tail || window || draft ? kItemMasked : 0;
}

bool Planner::ReserveContributions(int32_t set, int32_t count) {
  MergeSet& merge_set = sets_[set];
  if (BlockPool::Rounded(count) != BlockPool::Rounded(set_capacity_[set])) {
    contribution_pool_.Free(merge_set.contribution_begin, set_capacity_[set]);
    set_capacity_[set] = 0;
    merge_set.contribution_begin = contribution_pool_.Allocate(count);
    if (merge_set.contribution_begin == BlockPool::kNone) return false;
  }
  set_capacity_[set] = count;
  CountContributions(merge_set, -1);
  merge_set.contribution_count = count;
  CountContributions(merge_set, 1);
  set_touched_[set] = 1;
  return true;
}

// An owner's pieces stand, in order, after the contributions from above: so each set's contributions come in path order. An owner
// that was laid out again tells all its sets; the others only the sets that need everything again.
void Planner::FillContributions() {
  ForEachDirtyUpwards([&](int32_t n) {
    if (const int32_t p = index_->parent[n]; p != kNoParent) touched_below_[p] += touched_below_[n];
  });
  int32_t counted_to = 0;  // position up to which the branches' sets were counted as replanned
  ForEachDirty([&](int32_t n) {
    const bool relaid = relaid_[n] && owners_[n].pieces > 0;
    if (relaid && index_->first_member[n] >= counted_to) {
      sets_replanned_ += nodes_[n].num_sets;
      counted_to = index_->last_member[n];
    }
    if (relaid || touched_below_[n] > 0) FillOwner(n, relaid);
    for (int32_t b : BranchesAt(n)) {
      int32_t rewritten = 0;
      ForEachTile(b, [&](const Tile& tile) {
        const bool all = relaid_[tile.owner];
        FillOwner(tile.owner, all);
        if (all) {
          rewritten += tile.num_sets;
          return;
        }
        int32_t set = tile.first_set;
        for (int32_t i = 0; i < tile.num_sets; ++i, set = next_set_[set]) rewritten += set_touched_[set];
      });
      if (index_->first_member[n] >= counted_to) sets_replanned_ += rewritten;
    }
  });
}

void Planner::FillOwner(int32_t owner_id, bool all_members) {
  const Owner& owner = owners_[owner_id];
  const int32_t group_size = spec_.group_size(), first_item = blocks_[owner_id].items;
  if (owner.pieces == 0) return;
  for (int32_t group = 0; group < owner.row_groups; ++group) {
    const WorkItem& first = items_[first_item + group];
    const std::span<const int32_t> members = members_.subspan(first.member_begin, first.member_count);
    int32_t rows = owner.rows;
    if (owner.row_groups > 1) {
      rows = 0;
      for (int32_t set : members) rows += sets_[set].query_count * group_size;
    }
    int32_t row = 0;
    for (int32_t set : members) {
      const MergeSet& merge_set = sets_[set];
      if (all_members || set_touched_[set]) {
        Contribution* contribution = &contributions_[merge_set.contribution_begin + owner.contributions_above];
        for (int32_t piece = 0; piece < owner.pieces; ++piece) {
          const int32_t item = first_item + piece * owner.row_groups + group;
          *contribution++ = {
              .state_begin = owner.writes_states ? items_[item].state_begin + row : -1, .head_stride = rows, .item = item};
        }
      }
      row += merge_set.query_count * group_size;
    }
  }
}

// Longest predicted first, to within a class of 6 %; a counting sort keeps it linear.
void Planner::FillQueues() {
  std::ranges::fill(class_begin_, 0);
  BeginReads();
  const std::span<const WorkItem> items = items_.first(item_pool_.used());
  for (size_t i = 0; i < items.size(); ++i) {
    const WorkItem& item = items[i];
    if (item.member_count == 0) {
      item_class_[i] = kNoClass;
      continue;
    }
    const int32_t offset = item.kind == ItemKind::kDenseTile ? 0 : kNumClasses;
    item_class_[i] = static_cast<uint16_t>(offset + kNumClasses - 1 - TimeClass(item.predicted_ns));
    ++class_begin_[item_class_[i]];
    CountRead(item);
  }
  int32_t total = 0;
  for (size_t i = 0; i < class_begin_.size(); ++i) {
    if (i == kNumClasses) num_compute_ = std::exchange(total, 0);
    total += std::exchange(class_begin_[i], total);
  }
  num_bandwidth_ = total;
  for (size_t i = 0; i < items.size(); ++i) {
    if (item_class_[i] == kNoClass) continue;
    (item_class_[i] < kNumClasses ? compute_queue_ : bandwidth_queue_)[class_begin_[item_class_[i]]++] = static_cast<int32_t>(i);
  }
}

// Lengths for which this plan holds. Unsplit rows of a branch that ends at kLive may grow; all else is laid out for one length.
void Planner::FinishLengths() {
  ForEachDirty([&](int32_t n) {
    for (int32_t b : BranchesAt(n)) HoldLengths(b);
  });
  const int32_t page_size = forest_.page_size, most_pages = INT32_MAX / page_size;
  const int32_t *lengths = index_->kv_len.data(), *counts = index_->query_count.data();
  const int32_t* pages = forest_.branch_page_capacity.data();
  const uint8_t* grows = grows_.data();
  int32_t *least = min_len_.data(), *most = max_len_.data();
  int32_t steps = INT32_MAX;
  for (int32_t b = 0; b < index_->num_branches(); ++b) {
    if (counts[b] == 0) {
      least[b] = INT32_MIN, most[b] = INT32_MAX;
      continue;
    }
    int32_t ahead = 0;
    if (grows[b] != 0) ahead = std::min(options_.lookahead_tokens, std::min(pages[b], most_pages) * page_size - lengths[b]);
    least[b] = lengths[b];
    most[b] = lengths[b] + ahead;
    steps = std::min(steps, ahead);
  }
  steps_left_ = steps;
}

// ---------------------------------------------------------------------------------------------------------------------- results

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
