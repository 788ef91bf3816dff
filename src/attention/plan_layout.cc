// Lays items, members, states and contributions out in their pools, leaving in place what did not change, and sorts the queues.
// Layer: attention.
#include "attention/plan.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <utility>

#include "attention/plan_stages.h"

namespace coppice::attention {
namespace {

constexpr uint16_t kNoClass = UINT16_MAX;
int32_t TimeClass(uint32_t ns) {
  if (ns < 16) return static_cast<int32_t>(ns);
  const int32_t octave = std::bit_width(ns) - 1;
  return octave * 16 + static_cast<int32_t>((ns >> (octave - 4)) & 15);
}

}  // namespace

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

}  // namespace coppice::attention
