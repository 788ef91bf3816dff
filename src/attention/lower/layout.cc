// Lays items, members, states and contributions out in their pools, leaving in place what did not change, and sorts the queues.
// Layer: attention.
#include <algorithm>
#include <bit>
#include <climits>
#include <utility>

#include "attention/lower/item_lowering.h"

namespace coppice::attention {
namespace {

// Time classes of the queues: 16 an octave, that is 6 % apart.
constexpr int32_t kNumClasses = 32 * 16;
constexpr uint16_t kNoClass = UINT16_MAX;
int32_t TimeClass(uint32_t ns) {
  if (ns < 16) return static_cast<int32_t>(ns);
  const int32_t octave = std::bit_width(ns) - 1;
  return octave * 16 + static_cast<int32_t>((ns >> (octave - 4)) & 15);
}

}  // namespace

void ItemLowering::Layout(Arena& arena) {
  const PlanSizes& sizes = problem_.sizes;
  const int32_t num_nodes = problem_.capacity.max_nodes, num_ranges = problem_.num_ranges(), num_sets = sizes.max_merge_sets;
  work_.cuts = arena.Take<RangeCuts>(num_ranges);
  work_.heads_per_task = arena.Take<int32_t>(num_ranges);
  work_.laid_out = arena.Take<LaidOut>(num_ranges);
  work_.needs = arena.Take<Needs>(num_ranges);
  work_.blocks = arena.Take<Blocks>(num_ranges);
  work_.relaid = arena.Take<uint8_t>(num_ranges);
  contributions_to_ = arena.Take<int32_t>(num_nodes);
  touched_below_ = arena.Take<int32_t>(num_nodes);
  sets_.capacity = arena.Take<int32_t>(num_sets);
  sets_.touched = arena.Take<uint8_t>(num_sets);
  pools_.items.Layout(arena, sizes.max_items);
  pools_.members.Layout(arena, sizes.max_members);
  pools_.contributions.Layout(arena, sizes.max_contributions);
  pools_.states.Layout(arena, sizes.max_states / problem_.spec.num_kv_heads);
  list_.items = arena.Take<WorkItem>(sizes.max_items);
  list_.members = arena.Take<int32_t>(sizes.max_members);
  list_.contributions = arena.Take<Contribution>(sizes.max_contributions);
  queues_.class_begin = arena.Take<int32_t>(2 * kNumClasses);
  queues_.item_class = arena.Take<uint16_t>(sizes.max_items);
  queues_.compute = arena.Take<int32_t>(sizes.max_items);
  queues_.bandwidth = arena.Take<int32_t>(sizes.max_items);
  changed_.items = arena.Take<int32_t>(sizes.max_items);
  changed_.sets = arena.Take<int32_t>(num_sets);
  changed_.is_listed = arena.Take<uint8_t>(num_sets);
  totals_.open_reads = arena.Take<int32_t>(problem_.capacity.max_branches);
}

void ItemLowering::Begin() {
  for (const int32_t set : changed_.sets.first(changed_.num_sets)) changed_.is_listed[set] = 0;
  changed_.num_items = changed_.num_sets = 0;
}

PlanView ItemLowering::View() const {
  return {.spec = problem_.spec,
          .page_size = problem_.capacity.page_size,
          .items = list_.items.first(pools_.items.used()),
          .members = list_.members.first(pools_.members.used()),
          .merge_sets = tiles_.sets(),
          .contributions = list_.contributions.first(pools_.contributions.used()),
          .compute_queue = queues_.compute.first(queues_.num_compute),
          .bandwidth_queue = queues_.bandwidth.first(queues_.num_bandwidth),
          .num_states = pools_.states.used() * problem_.spec.num_kv_heads,
          .changed_items = changed_.items.first(changed_.num_items),
          .changed_sets = changed_.sets.first(changed_.num_sets)};
}

void ItemLowering::Clear() {
  std::ranges::fill(list_.items.first(pools_.items.used()), WorkItem{});  // blocks have slots that no item takes
  pools_.items.Clear();
  pools_.members.Clear();
  pools_.contributions.Clear();
  pools_.states.Clear();
  std::ranges::fill(work_.laid_out, LaidOut{});
  std::ranges::fill(work_.blocks, Blocks{});
  std::ranges::fill(sets_.capacity, 0);
  changed_.num_items = 0;  // all are laid out again, and listed
}

void ItemLowering::RetireRange(RangeId range_id) {
  FreeBlocks(range_id);
  work_.cuts[range_id] = {};
  if (!problem_.IsTile(range_id)) contributions_to_[NodeOf(range_id)] = 0;
  SetNeeds(range_id, {});
}

void ItemLowering::RetireSets(int32_t branch) {
  tiles_.ForEachSet(branch, tiles_.NumSets(branch), [&](int32_t set) {
    const MergeSet& merge_set = tiles_.sets()[set];
    CountContributions(merge_set, -1);
    RetireRange(problem_.TileRange(set));
    pools_.contributions.Free(merge_set.contribution_begin, sets_.capacity[set]);
    sets_.capacity[set] = 0;
    MarkChanged(set);
  });
}

// Lays out every range whose work changed and refreshes the flags and times of marked ones.
bool ItemLowering::LayOut() {
  sets_laid_out_ = 0;
  std::ranges::fill(sets_.touched, 0);
  // Give back first, so that the new layout finds room.
  const auto give_back = [&](RangeId range_id, bool members_changed) {
    work_.relaid[range_id] = members_changed || !(AsCut(range_id) == work_.laid_out[range_id]);
    if (work_.relaid[range_id]) FreeBlocks(range_id);
  };
  changes_->ForEach([&](int32_t n) {
    touched_below_[n] = 0;
    give_back(NodeRange(n), changes_->members_changed(n) && work_.cuts[NodeRange(n)].pieces > 0);
    for (int32_t b : forest_->BranchesAt(n)) {
      tiles_.ForEachTile(b, [&](const RowTile& tile) { give_back(tile.range_id, changes_->branch_changed(b)); });
    }
  });
  bool fits = true;
  changes_->ForEach([&](int32_t n) {
    fits = fits && EmitRange(NodeRange(n));
    for (int32_t b : forest_->BranchesAt(n)) {
      tiles_.ForEachTile(b, [&](const RowTile& tile) {
        fits = fits && EmitRange(tile.range_id);
        const int32_t total = contributions_to_[n] + work_.cuts[tile.range_id].pieces;
        tiles_.ForEachSet(tile.first_set, tile.num_sets, [&](int32_t set) {
          if (!changes_->branch_changed(b) && sets_.capacity[set] == total) return;
          fits = fits && ReserveContributions(set, total);
          ++touched_below_[n];
        });
      });
    }
  });
  if (fits) FillContributions();
  return fits;
}

ItemLowering::LaidOut ItemLowering::AsCut(RangeId range_id) const {
  const ShareRange& range = shares_.range(range_id);
  return {.begin = range.begin, .end = range.end, .rows = range.rows, .num_sets = range.num_sets, .cuts = work_.cuts[range_id]};
}

void ItemLowering::FreeBlocks(RangeId range_id) {
  Blocks& blocks = work_.blocks[range_id];
  std::ranges::fill(list_.items.subspan(blocks.items, blocks.num_items), WorkItem{});
  pools_.items.Free(blocks.items, blocks.num_items);
  pools_.members.Free(blocks.members, blocks.num_members);
  pools_.states.Free(blocks.states, blocks.num_states);
  blocks = {};
  work_.laid_out[range_id] = {};
}

bool ItemLowering::EmitRange(RangeId range_id) {
  const RangeCuts& cuts = work_.cuts[range_id];
  if (cuts.pieces == 0) return true;
  const ShareRange& range = shares_.range(range_id);
  const int32_t num_kv_heads = problem_.spec.num_kv_heads, heads_per_task = work_.heads_per_task[range_id];
  Blocks& blocks = work_.blocks[range_id];
  if (work_.laid_out[range_id].cuts.pieces == 0) {
    const Blocks wanted{.num_items = cuts.num_items(),
                        .num_members = range.num_sets,
                        .num_states = cuts.writes_states ? cuts.pieces * range.rows : 0};
    const int32_t items = pools_.items.Allocate(wanted.num_items);
    const int32_t members = pools_.members.Allocate(wanted.num_members);
    const int32_t states = pools_.states.Allocate(wanted.num_states);
    if (items == BlockPool::kNone || members == BlockPool::kNone || states == BlockPool::kNone) return false;
    blocks = wanted;
    blocks.items = items, blocks.members = members, blocks.states = states;
    int32_t* member = list_.members.data() + members;
    ForEachMember(range_id, [&](int32_t set) { *member++ = set; });
  }
  work_.laid_out[range_id] = AsCut(range_id);
  int32_t k = 0;
  ForEachRowGroup(range_id, cuts.group_rows, [&](const RowGroup& group) {
    for (int32_t piece = 0; piece < cuts.pieces; ++piece) {
      const bool last = piece + 1 == cuts.pieces;
      const int32_t begin = PieceBegin(range_id, piece), end = last ? range.end : PieceBegin(range_id, piece + 1);
      const int32_t tokens = std::max(0, (last ? range.planned_end : end) - begin);
      const double ns = tokens * costs_.Of(group.rows).token_ns * heads_per_task + problem_.cost.machine().item_fixed_ns;
      const int32_t id = blocks.items + piece * cuts.row_groups + k;
      WorkItem& item = list_.items[id];
      const uint8_t flags = FlagsOf(range, begin, end);
      if (work_.relaid[range_id] || item.flags != flags || item.page_row != group.branch) changed_.items[changed_.num_items++] = id;
      item = {.kind = problem_.cost.tiles().KindOf(group.rows),
              .flags = flags,
              .heads_per_task = static_cast<uint16_t>(heads_per_task),
              .page_row = group.branch,
              .kv_begin = begin,
              .kv_end = end,
              .member_begin = blocks.members + group.first_member,
              .member_count = group.num_members,
              .state_begin = cuts.writes_states ? (blocks.states + piece * range.rows + group.first_row) * num_kv_heads : -1,
              .predicted_ns = static_cast<uint32_t>(std::min(ns, 4e9))};
    }
    ++k;
  });
  return true;
}

// Masked if a row may not see the whole range, now or before the next replanning.
uint8_t ItemLowering::FlagsOf(const ShareRange& range, int32_t begin, int32_t end) const {
  const int32_t seen_by_all = range.min_query + 1, window = problem_.spec.window;
  const bool live_end_seen = end == kLive && range.min_query == range.max_query;
  const bool tail = end > seen_by_all && !live_end_seen;
  const bool windowed = window > 0 && begin < range.max_query + problem_.options.lookahead_tokens - window + 1;
  const bool draft = forest_->has_tree_mask() && end > seen_by_all - 1;
  return tail || windowed || draft ? kItemMasked : 0;
}

bool ItemLowering::ReserveContributions(int32_t set, int32_t count) {
  MergeSet& merge_set = tiles_.sets()[set];
  if (BlockPool::Rounded(count) != BlockPool::Rounded(sets_.capacity[set])) {
    pools_.contributions.Free(merge_set.contribution_begin, sets_.capacity[set]);
    sets_.capacity[set] = 0;
    merge_set.contribution_begin = pools_.contributions.Allocate(count);
    if (merge_set.contribution_begin == BlockPool::kNone) return false;
  }
  sets_.capacity[set] = count;
  CountContributions(merge_set, -1);
  merge_set.contribution_count = count;
  CountContributions(merge_set, 1);
  sets_.touched[set] = 1;
  MarkChanged(set);
  return true;
}

void ItemLowering::MarkChanged(int32_t set) {
  if (std::exchange(changed_.is_listed[set], uint8_t{1}) == 0) changed_.sets[changed_.num_sets++] = set;
}

void ItemLowering::CountContributions(const MergeSet& set, int32_t sign) {
  totals_.set_contributions += sign * set.contribution_count;
  if (set.contribution_count > 1) {
    totals_.merged_state_rows += int64_t{sign} * set.query_count * problem_.spec.group_size() * set.contribution_count;
  }
}

// A range's pieces stand, in order, after the contributions from above: so each set's contributions come in path order. A range
// that was laid out again lists all its sets; the others only the sets that need everything again.
void ItemLowering::FillContributions() {
  changes_->ForEachUpwards([&](int32_t n) {
    if (const int32_t p = forest_->parent[n]; p != kNoParent) touched_below_[p] += touched_below_[n];
  });
  int32_t counted_to = 0;  // position up to which the branches' sets were counted as laid out
  changes_->ForEach([&](int32_t n) {
    const RangeId shared = NodeRange(n);
    const bool relaid = work_.relaid[shared] && work_.cuts[shared].pieces > 0;
    if (relaid && forest_->first_member[n] >= counted_to) {
      sets_laid_out_ += shares_.node(n).num_sets;
      counted_to = forest_->last_member[n];
    }
    if (relaid || touched_below_[n] > 0) FillRange(shared, relaid);
    for (int32_t b : forest_->BranchesAt(n)) {
      int32_t rewritten = 0;
      tiles_.ForEachTile(b, [&](const RowTile& tile) {
        const bool all = work_.relaid[tile.range_id];
        FillRange(tile.range_id, all);
        if (all) {
          rewritten += tile.num_sets;
          return;
        }
        tiles_.ForEachSet(tile.first_set, tile.num_sets, [&](int32_t set) { rewritten += sets_.touched[set]; });
      });
      if (forest_->first_member[n] >= counted_to) sets_laid_out_ += rewritten;
    }
  });
}

void ItemLowering::FillRange(RangeId range_id, bool all_members) {
  const RangeCuts& cuts = work_.cuts[range_id];
  const int32_t first_item = work_.blocks[range_id].items;
  if (cuts.pieces == 0) return;
  const std::span<const MergeSet> sets = tiles_.sets();
  for (int32_t group = 0; group < cuts.row_groups; ++group) {
    const WorkItem& first = list_.items[first_item + group];
    const std::span<const int32_t> members = list_.members.subspan(first.member_begin, first.member_count);
    int32_t rows = shares_.range(range_id).rows;
    if (cuts.row_groups > 1) {
      rows = 0;
      for (int32_t set : members) rows += tiles_.RowsOf(set);
    }
    int32_t row = 0;
    for (int32_t set : members) {
      if (all_members || sets_.touched[set]) {
        Contribution* contribution = &list_.contributions[sets[set].contribution_begin + cuts.contributions_above];
        for (int32_t piece = 0; piece < cuts.pieces; ++piece) {
          const int32_t item = first_item + piece * cuts.row_groups + group;
          *contribution++ = {
              .state_begin = cuts.writes_states ? list_.items[item].state_begin + row : -1, .head_stride = rows, .item = item};
        }
      }
      row += tiles_.RowsOf(set);
    }
  }
}

// Longest predicted first, to within a class of 6 %; a counting sort keeps it linear.
void ItemLowering::FillQueues() {
  std::ranges::fill(queues_.class_begin, 0);
  std::ranges::fill(totals_.open_reads, 0);
  totals_.closed_reads = 0;
  totals_.reads_ahead = false;
  const std::span<const WorkItem> items = list_.items.first(pools_.items.used());
  for (size_t i = 0; i < items.size(); ++i) {
    const WorkItem& item = items[i];
    if (item.member_count == 0) {
      queues_.item_class[i] = kNoClass;
      continue;
    }
    const int32_t offset = item.kind == ItemKind::kDenseTile ? 0 : kNumClasses;
    queues_.item_class[i] = static_cast<uint16_t>(offset + kNumClasses - 1 - TimeClass(item.predicted_ns));
    ++queues_.class_begin[queues_.item_class[i]];
    CountRead(item);
  }
  int32_t total = 0;
  for (size_t i = 0; i < queues_.class_begin.size(); ++i) {
    if (i == kNumClasses) queues_.num_compute = std::exchange(total, 0);
    total += std::exchange(queues_.class_begin[i], total);
  }
  queues_.num_bandwidth = total;
  for (size_t i = 0; i < items.size(); ++i) {
    if (queues_.item_class[i] == kNoClass) continue;
    (queues_.item_class[i] < kNumClasses ? queues_.compute : queues_.bandwidth)[queues_.class_begin[queues_.item_class[i]]++] =
        static_cast<int32_t>(i);
  }
}

inline void ItemLowering::CountRead(const WorkItem& item) {
  const bool open = item.kv_end == kLive;
  totals_.open_reads[item.page_row] += open;
  totals_.closed_reads += open ? -item.kv_begin : std::max(0, item.kv_end - item.kv_begin);
  totals_.reads_ahead |= (open ? item.kv_begin : item.kv_end) > forest_->kv_len[item.page_row];
}

}  // namespace coppice::attention
