// How what is shared is cut and laid out: the ranges of a share plan become work items along rows and KV, in blocks of kv heads,
// with states and contributions where rows have several, and queues of them. The list is what the CPU executes; a GPU's lowering
// (cuda/lower/), whose ranges stay whole here outside deterministic mode, cuts it for SMs and warps. Edited in place: what did not
// change keeps its slots. Decides nothing about sharing. Layer: attention, private.
#pragma once

#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "attention/block_pool.h"
#include "attention/deterministic_cuts.h"
#include "attention/forest.h"
#include "attention/plan_changes.h"
#include "attention/plan_problem.h"
#include "attention/range_costs.h"
#include "attention/row_tiles.h"
#include "attention/share/share_plan.h"
#include "attention/work_list.h"

namespace coppice::attention {

// How an owner's range is cut: `pieces` along KV times `row_groups` along the rows.
struct RangeCuts : KvCuts {
  int32_t row_groups = 0, group_rows = 0;  // rows that a row group may hold
  int32_t contributions_above = 0;         // of its merge sets, from shared nodes above
  bool writes_states = false;

  int32_t num_items() const { return pieces * row_groups; }
  bool operator==(const RangeCuts&) const = default;
};

class ItemLowering {
 public:
  ItemLowering(const PlanProblem& problem, const RangeCosts& costs, const SharePlan& shares, RowTiles& tiles)
      : problem_(problem), costs_(costs), shares_(shares), tiles_(tiles) {}
  void Layout(Arena& arena);

  // A node or row tile that is no more; the sets of a branch, before they are given back, with its row tiles.
  void RetireOwner(int32_t owner);
  void RetireSets(int32_t branch);
  // Nothing is laid out any more. All nodes need to be marked after it.
  void Clear();

  // What changes from now on is what View tells.
  void Begin();
  // The stages for one forest, in order, after the share plan's. Cut: whether what comes of it fits the capacity; more pressure
  // cuts less.
  bool Cut(const ForestIndex& forest, PlanChanges& changes, int32_t pressure);
  // Lays every owner out whose work changed; false if the pools are too fragmented: Clear and mark all nodes then.
  bool LayOut();
  void FillQueues();

  // What came of it.
  PlanView View() const;
  const RangeCuts& cuts(int32_t owner) const { return owners_.cuts[owner]; }
  int32_t heads_per_task(int32_t owner) const { return owners_.heads_per_task[owner]; }
  double grain_ns() const { return grain_ns_; }
  int32_t num_items() const { return queues_.num_compute + queues_.num_bandwidth; }
  int32_t sets_laid_out() const { return sets_laid_out_; }  // for the last forest
  Load TotalLoad() const;

  // What Stats counts, kept with every change. Tokens are sums over branches: a constant, and so many times the branch's length.
  std::span<const int32_t> open_reads() const { return totals_.open_reads; }  // [B] items that read to its end
  int64_t closed_reads() const { return totals_.closed_reads; }               // what items read, an open end taken as 0
  bool reads_ahead() const { return totals_.reads_ahead; }                    // an item begins or ends past its branch's length
  int64_t set_contributions() const { return totals_.set_contributions; }     // of sets in use
  int64_t merged_state_rows() const { return totals_.merged_state_rows; }     // rows of partial states that are folded

 private:
  // A range as it was laid out.
  struct LaidOut {
    int32_t begin = 0, end = 0, rows = 0, num_sets = 0;
    RangeCuts cuts;
    bool operator==(const LaidOut&) const = default;
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
  // Where an owner's parts lie.
  struct Blocks {
    int32_t items = 0, num_items = 0;
    int32_t members = 0, num_members = 0;
    int32_t states = 0, num_states = 0;  // in rows: x num_kv_heads states
  };
  struct RowGroup {
    int32_t branch = -1;  // whose page row is used
    int32_t first_member = 0, num_members = 0;
    int32_t first_row = 0, rows = 0;
  };
  struct OwnerWork {            // [owners]
    std::span<RangeCuts> cuts;  // as wanted
    std::span<int32_t> heads_per_task;
    std::span<LaidOut> laid_out;
    std::span<Needs> needs;
    std::span<Blocks> blocks;
    std::span<uint8_t> relaid;  // that were laid out again
  };
  struct SetWork {                // [sets]
    std::span<int32_t> capacity;  // slots of its contribution block
    std::span<uint8_t> touched;   // needs all its contributions again
  };
  struct Pools {
    BlockPool items, members, contributions, states;
  };
  struct List {
    std::span<WorkItem> items;
    std::span<int32_t> members;
    std::span<Contribution> contributions;
  };
  struct Queues {
    std::span<int32_t> class_begin;  // time classes of their counting sort
    std::span<uint16_t> item_class;  // [items] theirs
    std::span<int32_t> compute, bandwidth;
    int32_t num_compute = 0, num_bandwidth = 0;
  };
  // PlanView::changed_items and changed_sets.
  struct Told {
    std::span<int32_t> items, sets;
    std::span<uint8_t> is_told;  // [sets] among the changed ones
    int32_t num_items = 0, num_sets = 0;
  };
  // What Stats counts: the accessors above say how.
  struct Totals {
    std::span<int32_t> open_reads;
    int64_t closed_reads = 0;
    bool reads_ahead = false;
    int64_t set_contributions = 0, merged_state_rows = 0;
  };

  // cuts.cc
  void SetGrain();
  void SplitRanges();
  bool Fits() const;
  void ShapeOwner(int32_t owner);
  void CutRange(int32_t owner, int32_t pieces);
  int32_t PieceBegin(int32_t owner, int32_t piece) const;
  Needs NeedsOf(int32_t owner) const;
  void SetNeeds(int32_t owner, const Needs& needs);
  // layout.cc
  void FreeBlocks(int32_t owner);
  bool EmitOwner(int32_t owner);
  LaidOut AsCut(int32_t owner) const;
  uint8_t FlagsOf(const ShareRange& range, int32_t begin, int32_t end) const;
  bool ReserveContributions(int32_t set, int32_t count);
  void TellSet(int32_t set);
  void CountContributions(const MergeSet& set, int32_t sign);
  void FillContributions();
  void FillOwner(int32_t owner, bool all_members);
  void CountRead(const WorkItem& item);

  template <class F>
  void ForEachMember(int32_t owner, F&& f) const;
  template <class F>
  void ForEachRowGroup(int32_t owner, int32_t group_rows, F&& f) const;

  const PlanProblem& problem_;
  const RangeCosts& costs_;
  const SharePlan& shares_;
  RowTiles& tiles_;
  const ForestIndex* forest_ = nullptr;  // of the last Cut
  PlanChanges* changes_ = nullptr;
  int32_t pressure_ = 0;

  OwnerWork owners_;
  std::span<int32_t> contributions_to_;  // [N] of sets below, up to and including this node
  std::span<int32_t> touched_below_;     // [N] of marked nodes: touched sets of their subtrees
  SetWork sets_;
  double grain_ns_ = 0;
  Needs total_needs_;
  int32_t sets_laid_out_ = 0;

  Pools pools_;
  List list_;
  Queues queues_;
  Told told_;
  Totals totals_;
};

template <class F>
void ItemLowering::ForEachMember(int32_t owner, F&& f) const {
  if (problem_.IsTile(owner)) {
    tiles_.ForEachSet(owner - problem_.capacity.max_nodes, shares_.range(owner).num_sets, f);
    return;
  }
  for (int32_t b : forest_->BranchesBelow(owner)) tiles_.ForEachSet(b, tiles_.NumSets(b), f);
}

// Row groups take members in order while they fit; a merge set is never split.
template <class F>
void ItemLowering::ForEachRowGroup(int32_t owner, int32_t group_rows, F&& f) const {
  const ShareRange& range = shares_.range(owner);
  if (range.rows <= group_rows) {
    const int32_t branch =
        problem_.IsTile(owner) ? tiles_.sets()[owner - problem_.capacity.max_nodes].branch : forest_->BranchesBelow(owner)[0];
    f(RowGroup{.branch = branch, .num_members = range.num_sets, .rows = range.rows});
    return;
  }
  RowGroup group;
  int32_t position = 0;
  ForEachMember(owner, [&](int32_t set) {
    const int32_t rows = tiles_.RowsOf(set);
    if (group.rows > 0 && rows > group_rows - group.rows) {
      f(group);
      group = {.first_member = position, .first_row = group.first_row + group.rows};
    }
    if (group.rows == 0) group.branch = tiles_.sets()[set].branch;
    group.rows += rows;
    group.num_members += 1;
    ++position;
  });
  if (group.rows > 0) f(group);
}

}  // namespace coppice::attention
