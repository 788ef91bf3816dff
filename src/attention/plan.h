// The planner: a prefix forest becomes work items, merge sets and their contributions. Pure host code, the same for all backends,
// deterministic, without allocation after Create. Executes nothing (PlanExecutor) and touches no KV.
// Layer: attention, private. Sharing: Hydragen section 3, Bifurcated section 4; many levels: Cascade Inference; prompt phase:
// RelayAttention algorithm 1; two queues: POD-Attention. docs/attention.md, "The plan", explains the decisions.
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

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/arena.h"
#include "attention/backend.h"
#include "attention/block_pool.h"
#include "attention/cost_model.h"
#include "attention/forest.h"
#include "attention/mark_set.h"
#include "attention/plan_units.h"
#include "attention/step_pricer.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"
#include "core/buffer.h"

namespace coppice::attention {

// Why a node's tokens are read once for all below, or by the items below.
enum class Decision : uint8_t {
  kIdle,          // no queries below
  kNothing,       // no tokens of its own to decide about (empty, out of every window, or a leaf of one row tile)
  kOnlyConsumer,  // one child (or row tile) has all its queries: that one reads on through
  kPolicy,        // the policy forbids sharing here
  kAbsorbed,      // predicted cheaper to read by each child
  kShared,        // predicted cheaper to read once
  kForced,        // shared because force_sharing says so
  kCapacity,      // would be shared, but items or states would not fit the plan's capacity
  kNoGain,        // worth it by itself, but the whole step is predicted to end no sooner than one that shares nothing
};

// "shared", "absorbed", ...: for reports.
std::string_view Name(Decision decision);

// A line of an explanation: "WHAT ID" first, where there is an id.
struct ExplainedLine {
  int32_t indent = 0;  // columns, from that of its node
  std::string_view what = {};
  int32_t id = -1;
  std::string text = {};
};

// Queries of one merge set at most.
constexpr int32_t MaxSetQueries(int32_t group_size) { return group_size >= 64 ? 1 : 64 / group_size; }

class Planner {
 public:
  // INVALID_ARGUMENT for a spec or capacity that is none; RESOURCE_EXHAUSTED if the system refuses the memory.
  static Result<std::unique_ptr<Planner>> Create(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                 const PlannerOptions& options, const BackendTraits& traits,
                                                 const MachineModel& machine);

  // As AttentionPlan::Update. O(branches) while nothing but lengths changed.
  Status Update(const PrefixForestView& forest);
  int32_t StepsLeft() const { return steps_left_; }
  PlanView View() const;
  PlanStats Stats() const;
  std::string Explain() const;

  // The length that a branch's items are taken to have where whole steps are predicted: one for each class of lengths.
  int32_t TypicalLength(int32_t branch) const {
    if (branch_sets_[branch] == 0 || !Grows(branch)) return index_->kv_len[branch];
    return PlannedClass(index_->begin[index_->branch_node[branch]], index_->kv_len[branch]).typical;
  }

  const PrefixForestView& forest() const { return forest_; }  // as given to the last Update that succeeded
  const AttentionSpec& spec() const { return spec_; }
  const PlanCapacity& capacity() const { return capacity_; }
  const PlannerOptions& options() const { return options_; }
  const BackendTraits& traits() const { return traits_; }
  const MachineModel& machine() const { return machine_; }
  const PlanSizes& sizes() const { return sizes_; }

 private:
  friend PlanSizes ComputePlanSizes(const AttentionSpec&, const PlanCapacity&, const BackendTraits&);

  // Reads one KV range for a list of merge sets: a shared node, or a row tile of a branch. Its items are `pieces` along KV times
  // `row_groups` along the rows. Owner ids: nodes first, then row tiles by their first merge set.
  struct Geometry {
    int32_t begin = 0, end = 0;              // kv indices; end may be kLive
    int32_t rows = 0, num_sets = 0;          // per kv head
    int32_t pieces = 0;                      // 0: owns nothing
    int32_t unit_pieces = 0;                 // deterministic mode: the first pieces that are single units
    int32_t first_cut = 0, chunk = 0;        // where piece max(1, unit_pieces) begins, and the distance of further cuts
    int32_t row_groups = 0, group_rows = 0;  // rows that a row group may hold
    int32_t contributions_above = 0;         // of its merge sets, from shared nodes above
    bool writes_states = false;

    int32_t num_items() const { return pieces * row_groups; }
    bool operator==(const Geometry&) const = default;
  };
  struct Owner : Geometry {
    int32_t planned_end = 0;               // end, or what kLive is taken to be
    int32_t cached_end = 0;                // tokens before it are read by others too
    int32_t min_query = 0, max_query = 0;  // kv indices of the first and last query
    int32_t heads_per_task = 1;
    int64_t step_ps = 0;  // predicted time before any cut
  };
  // What an owner adds to the step's time and to the layout.
  struct Needs {
    int64_t memory_ps = 0, compute_ps = 0, overhead_ps = 0;
    int64_t items = 0, members = 0, states = 0, contributions = 0;  // slots; states in rows
    int64_t too_deep = 0;  // tiles whose sets have more contributions than the backend takes

    Needs& operator+=(const Needs& o) {
      memory_ps += o.memory_ps, compute_ps += o.compute_ps, overhead_ps += o.overhead_ps;
      items += o.items, members += o.members, states += o.states, contributions += o.contributions;
      too_deep += o.too_deep;
      return *this;
    }
    Needs& operator-=(const Needs& o) {
      memory_ps -= o.memory_ps, compute_ps -= o.compute_ps, overhead_ps -= o.overhead_ps;
      items -= o.items, members -= o.members, states -= o.states, contributions -= o.contributions;
      too_deep -= o.too_deep;
      return *this;
    }
  };
  struct RowCosts {
    int32_t rows = -1, row_groups = 0;
    int32_t shortest_piece = 0;  // tokens below which a cut does not pay
    int64_t dense_tasks = 0, computed_rows = 0;
    int64_t compute_ps = 0;
    double compute_ns = 0;  // one token, whole machine
    double token_ns = 0;    // one token of one kv head on one worker
  };
  // Where an owner's parts lie.
  struct Blocks {
    int32_t items = 0, num_items = 0;
    int32_t members = 0, num_members = 0;
    int32_t states = 0, num_states = 0;  // in rows: x num_kv_heads states
  };
  struct NodePlan {
    int32_t rows = 0, num_sets = 0, num_consumers = 0;  // of the subtree; children and row tiles that have queries
    int32_t min_query = 0, max_query = 0;
    int32_t chain_begin = 0;                       // begin of the tokens that are read on through by this node alone if it shares
    int32_t share_end = 0;                         // items below begin here if this node is shared
    int32_t tokens = 0;                            // visible ones from chain_begin to share_end: what the decision is about
    int32_t chain_below = 0;                       // chain_begin that an only consumer inherits; kLive: none
    int32_t range_begin = 0;                       // where an item that covers this node begins
    int32_t range_below = 0;                       // where items below begin
    int64_t step_tokens = 0, step_compute_ps = 0;  // part of the step if everything were shared
    int64_t read_tokens = 0;                       // its tokens that a step reads, at typical lengths
    int32_t num_contributions = 0;                 // of sets below, up to and including this node
    int32_t own_reads = 0, below_reads = 0;        // items that read this node's tokens if it is shared; if not
    double own_compute = 0, below_compute = 0;     // their compute time a token
    double share_ns = 0, absorb_ns = 0;            // weighted cost of the two choices
    int32_t items_begin = 0, items_above = 0;      // as wanted: where items below begin, and how many there are before them
    Decision wanted = Decision::kIdle;             // by the node alone
    Decision decision = Decision::kIdle;           // with a view to the step

    static bool Shares(Decision d) { return d == Decision::kShared || d == Decision::kForced; }
    bool shared() const { return Shares(decision); }
    bool absorbed() const {
      return decision == Decision::kAbsorbed || decision == Decision::kPolicy || decision == Decision::kCapacity ||
             decision == Decision::kNoGain;
    }
    int32_t reads() const { return Shares(wanted) ? own_reads : below_reads; }
    double compute() const { return Shares(wanted) ? own_compute : below_compute; }
  };
  // An owner's item before any cut, at typical lengths.
  struct StepItem {
    int32_t rows = 0;  // 0: owns nothing
    int32_t begin = 0, end = 0;
    int32_t num_sets = 0;  // of a row tile; 0: a shared node
    int32_t items = 0;     // of a row tile's rows: itself and the shared ones above

    int32_t tokens() const { return std::max(0, end - begin); }
    bool operator==(const StepItem&) const = default;
  };
  // The whole step under one choice of shared nodes; `shape` is the sum of the items.
  struct Step {
    StepShape shape;
    std::span<StepItem> items;  // [N + sets]
    double ns = 0;              // by sums
    double as_cut_ns = 0;       // by the backend's cuts; 0: not asked for
    bool changed = true;        // since ns was computed
  };
  // How CostModel::Cut cuts an item of a step; remembered as RowCosts are.
  struct ItemCut {
    int32_t rows = -1, tokens = 0;
    int64_t shortest = 0;
    Pieces pieces;
    int64_t dense_tasks = 0;
    double fold_ns = 0, fold_state_ns = 0;
  };
  // The lengths of a branch that times are predicted alike for: the first and the last of them, and what their kLive is taken to be
  // in predictions of an item, and in sums of many, which would be too long by a third if each were rounded up.
  struct LengthClass {
    int32_t first, last;
    int32_t planned, typical;
  };
  // A row tile of a branch: consecutive merge sets that one dense tile holds.
  struct Tile {
    int32_t owner, first_set, num_sets, first_query, num_queries;
    bool last;
  };
  struct RowGroup {
    int32_t branch = -1;  // whose page row is used
    int32_t first_member = 0, num_members = 0;
    int32_t first_row = 0, rows = 0;
  };

  Planner(const AttentionSpec& spec, const PlanCapacity& capacity, const PlannerOptions& options, const BackendTraits& traits,
          const MachineModel& machine);
  void Layout(Arena& arena);
  static PlanSizes Limits(const AttentionSpec& spec, const PlanCapacity& capacity, const BackendTraits& traits);

  std::optional<int32_t> StillHolds(const PrefixForestView& forest) const;
  void Replan();
  // The stages of Replan, in order.
  void FindChanges();
  void SumUpwards();
  void SetPrices();
  void FindChains();
  void Decide();
  void ListItems();
  void JudgeStep();
  void AssignRanges();
  void SetGrain();
  void SplitOwners();
  bool Fits() const;
  bool Emit();  // false if the pools are too fragmented
  void FillContributions();
  void FillQueues();
  void FinishLengths();

  void MarkAll();
  void MarkChildren(int32_t n);
  void HoldLengths(int32_t branch);
  void SumNode(int32_t n);
  void SetOwner(int32_t id, const Owner& owner);
  void SetNeeds(int32_t owner, const Needs& needs);
  Needs NeedsOf(const Owner& owner) const;
  // Costs of an owner's rows, remembered: a step has few different row counts.
  const RowCosts& CostsOf(int32_t rows) const {
    RowCosts& costs = row_costs_[static_cast<uint32_t>(rows) * 0x9E3779B1u >> (32 - kRowCostsBits)];
    if (costs.rows != rows) [[unlikely]]
      costs = ComputeRowCosts(rows);
    return costs;
  }
  RowCosts ComputeRowCosts(int32_t rows) const;
  Load TotalLoad() const;
  void ReleaseBlocks();
  void CreateSets(int32_t branch, int32_t query_count);
  void RetireBranch(int32_t branch);
  void RetireOwner(int32_t owner);
  void FreeBlocks(int32_t owner);
  void CountDecision(const NodePlan& node, int32_t sign);
  void DecideNode(int32_t n);
  void SetItem(Step& step, int32_t owner, const StepItem& item);
  void CountItem(const StepItem& item, int64_t sign, StepShape& shape) const;
  void SetReadTokens(NodePlan& node, int64_t tokens);
  void PredictStep(Step& step);
  // Whether the step as the nodes want it ends soon enough before one that shares nothing.
  bool WantedStepPays();
  double AsCutNs(Step& step);
  StepChains ChainsOf(const Step& step);
  // CostModel::Cut of an item, remembered too: neighbours are alike.
  const ItemCut& CutOf(int32_t rows, int32_t tokens, int64_t shortest) {
    const uint32_t hash = (static_cast<uint32_t>(rows) * 0x9E3779B1u + static_cast<uint32_t>(tokens)) * 0x85EBCA6Bu;
    ItemCut& cut = item_cuts_[hash >> (32 - kItemCutsBits)];
    if (cut.rows != rows || cut.tokens != tokens || cut.shortest != shortest) [[unlikely]] {
      cut = ComputeItemCut(rows, tokens, shortest);
    }
    return cut;
  }
  ItemCut ComputeItemCut(int32_t rows, int32_t tokens, int64_t shortest) const;
  Decision Choose(int32_t n) const;
  void ShapeOwner(Owner& owner, int32_t owner_id) const;
  void CutRange(Owner& owner, bool is_tile, int32_t pieces) const;
  int32_t PieceBegin(const Owner& owner, int32_t piece) const;
  uint8_t FlagsOf(const Owner& owner, int32_t begin, int32_t end) const;
  // Counts that Stats takes in place of a walk over the plan (plan_stats.cc).
  void CountBranch(int32_t branch, int32_t query_count, int32_t sign);
  void CountContributions(const MergeSet& set, int32_t sign);
  void BeginReads();
  void CountRead(const WorkItem& item) {
    const bool open = item.kv_end == kLive;
    open_reads_[item.page_row] += open;
    closed_reads_ += open ? -item.kv_begin : std::max(0, item.kv_end - item.kv_begin);
    reads_ahead_ |= (open ? item.kv_begin : item.kv_end) > index_->kv_len[item.page_row];
  }
  int64_t TokensRead() const;
  int64_t TokensReadUnshared() const;
  int64_t VisibleTokens() const;
  bool EmitOwner(int32_t owner);
  bool ReserveContributions(int32_t set, int32_t count);
  void FillOwner(int32_t owner, bool all_members);
  std::vector<ExplainedLine> ExplainNode(int32_t n) const;
  ExplainedLine ExplainOwner(const Owner& owner) const;
  Load OwnerLoad(const Owner& owner, int32_t pieces) const;
  LengthClass PlannedClass(int32_t leaf_begin, int32_t kv_len) const;
  int32_t VisibleBegin(int32_t min_query) const;
  int32_t AlignShare(int32_t kv_index) const { return kv_index / share_unit_ * share_unit_; }

  // Whether whole steps are compared or predicted.
  bool JudgesSteps() const { return optional_ || cost_.has_latencies(); }
  bool IsLive(int32_t n) const { return index_->end[n] == kLive; }
  // Branches with queries that end exactly at node n.
  std::span<const int32_t> BranchesAt(int32_t n) const {
    const std::span<const int32_t> below = BranchesBelow(n);
    size_t count = 0;  // those that end here come first
    while (count < below.size() && index_->branch_node[below[count]] == n) ++count;
    return below.first(count);
  }
  std::span<const int32_t> BranchesBelow(int32_t n) const {
    const int32_t first = index_->first_member[n];
    return index_->ActiveBranches().subspan(first, index_->last_member[n] - first);
  }
  int32_t NumTiles(int32_t branch) const;
  // Whether a plan may hold for more than one length of a branch that has queries: its one row tile ends at kLive.
  bool Grows(int32_t branch) const { return IsLive(index_->branch_node[branch]) && NumTiles(branch) == 1; }
  int32_t TileOwner(int32_t first_set) const { return capacity_.max_nodes + first_set; }
  // f(node) for dirty nodes, parents first; f may mark descendants. Upwards: children first; f may mark ancestors.
  template <class F>
  void ForEachDirty(F&& f) const {
    dirty_.ForEach([&](int32_t at) { f(index_->Preorder()[at]); });
  }
  template <class F>
  void ForEachDirtyUpwards(F&& f) const {
    dirty_.ForEachBackwards([&](int32_t at) { f(index_->Preorder()[at]); });
  }
  template <class F>
  void ForEachTile(int32_t branch, F&& f) const;
  template <class F>
  void ForEachMember(int32_t owner, F&& f) const;
  template <class F>
  void ForEachRowGroup(int32_t owner, int32_t group_rows, F&& f) const;

  AttentionSpec spec_;
  PlanCapacity capacity_;
  PlannerOptions options_;
  BackendTraits traits_;
  MachineModel machine_;
  CostModel cost_;
  PlanSizes sizes_;
  int32_t set_queries_, tile_sets_, share_unit_, window_unit_;

  Buffer memory_;
  ForestIndex index_a_, index_b_;
  ForestIndex *index_, *previous_;
  PrefixForestView forest_;
  bool planned_ = false;

  // Inputs of the last replanning that all decisions depend on, coarse enough to change rarely.
  double memory_price_ = 1, compute_price_ = 1, grain_ns_ = 0;
  bool sharing_pays_ = true;
  bool optional_ = true;    // sharing, as far as options say
  Step unshared_, wanted_;  // if nothing were shared; as the nodes want. Kept where they are compared or predict the step
  double step_ns_ = 0;      // of the two, the one that is planned
  bool judged_as_cut_ = false;
  std::unique_ptr<StepPricer> pricer_;                           // null: steps are compared by their sums
  int64_t step_tokens_ = 0, step_compute_ps_ = 0, step_ps_ = 0;  // sums over nodes, and over owners before any cut
  static constexpr int kRowCostsBits = 6;
  mutable std::array<RowCosts, 1 << kRowCostsBits> row_costs_;
  static constexpr int kItemCutsBits = 8;
  std::array<ItemCut, 1 << kItemCutsBits> item_cuts_;
  int32_t pressure_ = 0;                           // how often the grain was doubled, and shares halved, to fit the capacity
  int32_t shared_nodes_ = 0, absorbed_nodes_ = 0;  // of nodes_

  std::span<NodePlan> nodes_;           // [N]
  std::span<int32_t> states_above_;     // [N] ChainsOf: pieces of shared nodes, down to and including this one
  std::span<StepRange> ranges_;         // [N + sets] AsCutNs
  std::span<int32_t> range_of_node_;    // [N] AsCutNs: of the nearest node that is shared, this one or above; -1: none
  MarkSet dirty_;                       // nodes to be decided again, by their position; with a node, all of its ancestors
  std::span<uint8_t> members_changed_;  // [N] the list of merge sets below changed
  std::span<uint8_t> relaid_;           // [N + sets] owners that were laid out again
  std::span<uint8_t> branch_changed_;   // [B]
  std::span<Owner> owners_;             // [N + sets] as wanted
  std::span<Geometry> emitted_;         // [N + sets] as laid out
  std::span<Needs> needs_;              // [N + sets]
  std::span<Blocks> blocks_;            // [N + sets]
  std::span<int32_t> branch_sets_;      // [B] number of merge sets in use
  std::span<int32_t> next_set_;         // [sets] next of the same branch
  std::span<int32_t> free_sets_;        // stack of extra sets
  int32_t num_free_sets_ = 0;
  std::span<int32_t> set_capacity_;         // [sets] slots of its contribution block
  std::span<uint8_t> set_touched_;          // [sets] needs all its contributions again
  std::span<int32_t> min_len_, max_len_;    // [B] lengths for which the plan holds
  std::span<int32_t> touched_below_;        // [N] of dirty nodes: touched sets of their subtrees
  std::span<int32_t> hold_min_, hold_max_;  // [B] lengths that change no decision
  std::span<uint8_t> grows_;                // [B] laid out for lengths to come
  std::span<int32_t> class_begin_;          // time classes of the queues' counting sort
  std::span<uint16_t> item_class_;          // [items] theirs

  BlockPool item_pool_, member_pool_, contribution_pool_, state_pool_;
  std::span<WorkItem> items_;
  std::span<int32_t> members_;
  std::span<MergeSet> sets_;
  std::span<Contribution> contributions_;
  std::span<int32_t> compute_queue_, bandwidth_queue_;
  int32_t num_compute_ = 0, num_bandwidth_ = 0;
  int32_t steps_left_ = 0;
  Needs total_needs_;
  // What Stats counts, kept with every change. Tokens are sums over branches: a constant, and so many times the branch's length.
  std::span<int32_t> open_reads_;                          // [B] items that read to its end
  std::span<int32_t> row_tiles_;                           // [B]
  int64_t closed_reads_ = 0;                               // what items read, an open end taken as 0
  bool reads_ahead_ = false;                               // an item begins or ends past its branch's length
  int64_t tile_tokens_before_ = 0, tokens_before_ = 0;     // of all row tiles, of all queries: what their branch's ends see more
  int32_t sets_in_use_ = 0, split_branches_ = 0;           // the latter: of several row tiles
  int64_t set_contributions_ = 0, merged_state_rows_ = 0;  // of sets in use; rows of partial states that are folded
  int32_t nodes_replanned_ = 0, sets_replanned_ = 0;
  int64_t updates_skipped_ = 0, updates_replanned_ = 0;
};

template <class F>
void Planner::ForEachTile(int32_t branch, F&& f) const {
  int32_t set = branch;
  for (int32_t left = branch_sets_[branch]; left > 0;) {
    Tile tile{.owner = TileOwner(set),
              .first_set = set,
              .num_sets = std::min(left, tile_sets_),
              .first_query = sets_[set].query_begin,
              .num_queries = 0,
              .last = left <= tile_sets_};
    for (int32_t i = 0; i < tile.num_sets; ++i, set = next_set_[set]) tile.num_queries += sets_[set].query_count;
    left -= tile.num_sets;
    f(tile);
  }
}

template <class F>
void Planner::ForEachMember(int32_t owner, F&& f) const {
  if (owner >= capacity_.max_nodes) {
    int32_t set = owner - capacity_.max_nodes;
    for (int32_t i = 0; i < owners_[owner].num_sets; ++i, set = next_set_[set]) f(set);
    return;
  }
  for (int32_t b : BranchesBelow(owner)) {
    int32_t set = b;
    for (int32_t i = 0; i < branch_sets_[b]; ++i, set = next_set_[set]) f(set);
  }
}

// Row groups take members in order while they fit; a merge set is never split.
template <class F>
void Planner::ForEachRowGroup(int32_t owner_id, int32_t group_rows, F&& f) const {
  const Owner& owner = owners_[owner_id];
  if (owner.rows <= group_rows) {
    const int32_t branch =
        owner_id < capacity_.max_nodes ? BranchesBelow(owner_id)[0] : sets_[owner_id - capacity_.max_nodes].branch;
    f(RowGroup{.branch = branch, .num_members = owner.num_sets, .rows = owner.rows});
    return;
  }
  RowGroup group;
  int32_t position = 0;
  ForEachMember(owner_id, [&](int32_t set) {
    const int32_t rows = sets_[set].query_count * spec_.group_size();
    if (group.rows > 0 && rows > group_rows - group.rows) {
      f(group);
      group = {.first_member = position, .first_row = group.first_row + group.rows};
    }
    if (group.rows == 0) group.branch = sets_[set].branch;
    group.rows += rows;
    group.num_members += 1;
    ++position;
  });
  if (group.rows > 0) f(group);
}

}  // namespace coppice::attention
