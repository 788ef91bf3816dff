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

// How a range is cut: `pieces` along KV times `row_groups` along the rows.
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
  void RetireRange(RangeId range_id);
  void RetireSets(int32_t branch);
  // Nothing is laid out any more. All nodes need to be marked after it.
  void Clear();

  // View lists the changes from now on.
  void Begin();
  // The stages for one forest, in order, after the share plan's. Cut: whether the result fits the capacity; a higher coarsening
  // level cuts less.
  bool Cut(const ForestIndex& forest, PlanChanges& changes, int32_t coarsening_level);
  // Lays out every range whose work changed; false if the pools are too fragmented: Clear and mark all nodes then.
  bool LayOut();
  void FillQueues();

  // The result.
  PlanView View() const;
  const RangeCuts& cuts(RangeId range_id) const { return work_.cuts[range_id]; }
  int32_t heads_per_task(RangeId range_id) const { return work_.heads_per_task[range_id]; }
  double target_task_ns() const { return target_task_ns_; }
  int32_t num_items() const { return queues_.num_compute + queues_.num_bandwidth; }
  int32_t sets_laid_out() const { return sets_laid_out_; }  // for the last forest
  Load TotalLoad() const;

  // Counts for Stats, kept with every change. Tokens are sums over branches: a constant, and so many times the branch's length.
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
  // A range's part of the step's time and of the layout.
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
  // Where a range's parts lie.
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
  struct RangeWork {
    ByRange<RangeCuts> cuts;  // as wanted
    ByRange<int32_t> heads_per_task;
    ByRange<LaidOut> laid_out;
    ByRange<Needs> needs;
    ByRange<Blocks> blocks;
    ByRange<uint8_t> relaid;  // that were laid out again
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
  struct ChangedList {
    std::span<int32_t> items, sets;
    std::span<uint8_t> is_listed;  // [sets] among the changed ones
    int32_t num_items = 0, num_sets = 0;
  };
  // Counts for Stats: the accessors above say how.
  struct Totals {
    std::span<int32_t> open_reads;
    int64_t closed_reads = 0;
    bool reads_ahead = false;
    int64_t set_contributions = 0, merged_state_rows = 0;
  };

  // cuts.cc
  void SetTargetTaskNs();
  void SplitRanges();
  bool Fits() const;
  void ShapeRange(RangeId range_id);
  void CutRange(RangeId range_id, int32_t pieces);
  int32_t PieceBegin(RangeId range_id, int32_t piece) const;
  Needs NeedsOf(RangeId range_id) const;
  void SetNeeds(RangeId range_id, const Needs& needs);
  // layout.cc
  void FreeBlocks(RangeId range_id);
  bool EmitRange(RangeId range_id);
  LaidOut AsCut(RangeId range_id) const;
  uint8_t FlagsOf(const ShareRange& range, int32_t begin, int32_t end) const;
  bool ReserveContributions(int32_t set, int32_t count);
  void MarkChanged(int32_t set);
  void CountContributions(const MergeSet& set, int32_t sign);
  void FillContributions();
  void FillRange(RangeId range_id, bool all_members);
  void CountRead(const WorkItem& item);

  template <class F>
  void ForEachMember(RangeId range_id, F&& f) const;
  template <class F>
  void ForEachRowGroup(RangeId range_id, int32_t group_rows, F&& f) const;

  const PlanProblem& problem_;
  const RangeCosts& costs_;
  const SharePlan& shares_;
  RowTiles& tiles_;
  const ForestIndex* forest_ = nullptr;  // of the last Cut
  PlanChanges* changes_ = nullptr;
  int32_t coarsening_level_ = 0;

  RangeWork work_;
  std::span<int32_t> contributions_to_;  // [N] of sets below, up to and including this node
  std::span<int32_t> touched_below_;     // [N] of marked nodes: touched sets of their subtrees
  SetWork sets_;
  double target_task_ns_ = 0;
  Needs total_needs_;
  int32_t sets_laid_out_ = 0;

  Pools pools_;
  List list_;
  Queues queues_;
  ChangedList changed_;
  Totals totals_;
};

template <class F>
void ItemLowering::ForEachMember(RangeId range_id, F&& f) const {
  if (problem_.IsTile(range_id)) {
    tiles_.ForEachSet(problem_.FirstSetOf(range_id), shares_.range(range_id).num_sets, f);
    return;
  }
  for (int32_t b : forest_->BranchesBelow(NodeOf(range_id))) tiles_.ForEachSet(b, tiles_.NumSets(b), f);
}

// Row groups take members in order while they fit; a merge set is never split.
template <class F>
void ItemLowering::ForEachRowGroup(RangeId range_id, int32_t group_rows, F&& f) const {
  const ShareRange& range = shares_.range(range_id);
  if (range.rows <= group_rows) {
    const int32_t branch = problem_.IsTile(range_id) ? tiles_.sets()[problem_.FirstSetOf(range_id)].branch
                                                     : forest_->BranchesBelow(NodeOf(range_id))[0];
    f(RowGroup{.branch = branch, .num_members = range.num_sets, .rows = range.rows});
    return;
  }
  RowGroup group;
  int32_t position = 0;
  ForEachMember(range_id, [&](int32_t set) {
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
