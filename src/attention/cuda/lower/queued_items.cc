// Kinds of items, the tiles of prompts, and who reads what. Layer: attention/cuda.
#include "attention/cuda/lower/queued_items.h"

#include <algorithm>
#include <functional>

#include "attention/plan_units.h"

namespace coppice::attention::cuda {

QueuedItems::QueuedItems(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms)
    : spec_(spec),
      num_sms_(num_sms),
      pieces_(sizes.max_items),
      rows_(sizes.max_items),
      prompts_(capacity.max_branches),
      reads_(capacity.max_nodes > 0 ? capacity.max_nodes : 2 * capacity.max_branches) {
  items_.reserve(sizes.max_items);
  joined_.reserve(sizes.max_items);
  tiles_.reserve(sizes.max_items);
  masked_tiles_.reserve(sizes.max_items);
}

QueuedItems::Rows QueuedItems::CountRows(const PlanView& plan, const WorkItem& item) const {
  Rows rows;
  int32_t in_block = 0;
  for (const int32_t set : plan.members.subspan(item.member_begin, item.member_count)) {
    const int32_t set_rows = RowsOf(plan.merge_sets[set]);
    rows.all += set_rows;
    rows.most_of_set = std::max(rows.most_of_set, set_rows);
    // As PlanTranslator::EmitBlocks.
    if (rows.blocks == 0 || in_block + set_rows > kDenseRows) ++rows.blocks, in_block = 0;
    in_block += set_rows;
  }
  return rows;
}

void QueuedItems::Collect(const PlanView& plan, std::span<const int32_t> changed, const PrefixForestView& forest,
                          const SmCosts& costs) {
  for (const int32_t id : changed) rows_[id] = CountRows(plan, plan.items[id]);
  items_.clear();
  joined_.clear();
  // Only queued items are run: the pools of a plan that is edited in place hold others too.
  for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
    for (const int32_t id : queue) {
      const WorkItem& item = plan.items[id];
      const Rows rows = rows_[id];
      const int32_t end = std::min(item.kv_end, forest.branch_kv_len[item.page_row]);
      const int32_t tokens = std::max(0, end - item.kv_begin);
      items_.push_back({.item = id,
                        .node = forest.branch_node[item.page_row],
                        .kv_begin = item.kv_begin,
                        .rows = rows.all,
                        .blocks = rows.blocks,
                        .tokens = tokens,
                        .cut_tokens = tokens,
                        .most_set_rows = rows.most_of_set});
      pieces_[id] = {.kv_begin = item.kv_begin, .kv_end = item.kv_end, .masked = (item.flags & kItemMasked) != 0};
    }
  }
  if (!spec_.deterministic) JoinPromptTiles(plan);
  if (!joined_.empty()) DropJoined(plan, forest);
  ChooseKinds(items_, spec_.num_kv_heads, num_sms_, costs);
  for (const QueuedItem& queued : items_) {
    if (!queued.dense) pieces_[queued.item].block_rows = costs.stream_rows();
  }
  if (!spec_.deterministic) AlignPromptTiles(plan);
  reads_.Count(items_, {.parent = forest.node_parent, .begin = forest.node_begin, .end = forest.node_end}, costs);
  for (const QueuedItem& queued : items_) pieces_[queued.item].read_once = queued.read_once;
}

// What the row tiles of one prompt read in common gains nothing from being read by items of its own, whose row blocks are the same
// tiles: each tile reads on through and needs no states.
void QueuedItems::JoinPromptTiles(const PlanView& plan) {
  const auto members_of = [&](const WorkItem& item) { return plan.members.subspan(item.member_begin, item.member_count); };
  for (const QueuedItem& queued : items_) {
    const WorkItem& common = plan.items[queued.item];
    if (common.kv_end == kLive) continue;  // nothing begins there
    const auto members = members_of(common);
    const int32_t branch = plan.merge_sets[members.front()].branch;
    if (branch != common.page_row) continue;
    tiles_.clear();
    int64_t members_of_tiles = 0;
    for (const int32_t set_id : members) {
      const MergeSet& set = plan.merge_sets[set_id];
      if (set.branch != branch) break;
      for (const Contribution& c : plan.contributions.subspan(set.contribution_begin, set.contribution_count)) {
        const ItemPieces& pieces = pieces_[c.item];
        if (pieces.count == 0 || pieces.kv_begin != pieces_[queued.item].kv_end || plan.items[c.item].page_row != branch) continue;
        if (tiles_.empty() || tiles_.back() != c.item) {
          tiles_.push_back(c.item);
          members_of_tiles += plan.items[c.item].member_count;
        }
        break;
      }
    }
    // The tiles must have these members and no others.
    const auto begins_here = [&](int32_t tile) {
      return std::ranges::find(members, members_of(plan.items[tile]).front()) != members.end();
    };
    if (members_of_tiles != std::ssize(members) || !std::ranges::all_of(tiles_, begins_here)) continue;
    for (const int32_t tile : tiles_) {
      pieces_[tile].kv_begin = pieces_[queued.item].kv_begin;
      pieces_[tile].masked |= pieces_[queued.item].masked;
    }
    pieces_[queued.item].count = 0;
    joined_.push_back(queued.item);
  }
}

// Tiles of a prompt end one after the other, but what they read begins at one place: cut at the same places they share it.
void QueuedItems::AlignPromptTiles(const PlanView& plan) {
  masked_tiles_.clear();
  for (const QueuedItem& queued : items_) {
    if (!queued.dense || !pieces_[queued.item].masked) continue;
    masked_tiles_.push_back(static_cast<int32_t>(&queued - items_.data()));
    prompts_[plan.items[queued.item].page_row] = {.kv_begin = kLive, .longest = 0};
  }
  const auto for_each_tile = [&](auto&& visit) {
    for (const int32_t tile : masked_tiles_) visit(items_[tile], prompts_[plan.items[items_[tile].item].page_row]);
  };
  for_each_tile([](const QueuedItem& tile, PromptTiles& prompt) {
    if (tile.kv_begin < prompt.kv_begin) prompt = {.kv_begin = tile.kv_begin, .longest = 0};
    if (tile.kv_begin == prompt.kv_begin) prompt.longest = std::max(prompt.longest, tile.tokens);
  });
  for_each_tile([](QueuedItem& tile, const PromptTiles& prompt) {
    if (tile.kv_begin == prompt.kv_begin) tile.cut_tokens = prompt.longest;
  });
}

// Longest first, as the queues were.
void QueuedItems::DropJoined(const PlanView& plan, const PrefixForestView& forest) {
  std::erase_if(items_, [&](const QueuedItem& queued) { return pieces_[queued.item].count == 0; });
  for (QueuedItem& queued : items_) {
    const ItemPieces& whole = pieces_[queued.item];
    queued.kv_begin = whole.kv_begin;
    const int32_t length = forest.branch_kv_len[plan.items[queued.item].page_row];
    queued.tokens = queued.cut_tokens = std::max(0, std::min(whole.kv_end, length) - whole.kv_begin);
  }
  std::ranges::stable_sort(items_, std::greater<>(), &QueuedItem::tokens);
}

}  // namespace coppice::attention::cuda
