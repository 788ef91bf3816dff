// Kinds of items, the tiles of prompts, and the reads of each. Layer: attention/cuda.
#include "attention/cuda/lower/queued_items.h"

#include <algorithm>

#include "attention/plan_units.h"

namespace coppice::attention::cuda {

QueuedItems::QueuedItems(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms)
    : spec_(spec),
      num_sms_(num_sms),
      pieces_(sizes.max_items),
      rows_(sizes.max_items),
      prompts_(capacity.max_branches, sizes.max_items),
      reads_(capacity.max_nodes > 0 ? capacity.max_nodes : 2 * capacity.max_branches) {
  items_.reserve(sizes.max_items);
}

QueuedItems::Rows QueuedItems::CountRows(const PlanView& plan, const WorkItem& item) const {
  Rows rows;
  BlockPacker packer(kDenseRows);
  for (const int32_t set : plan.members.subspan(item.member_begin, item.member_count)) {
    const int32_t set_rows = RowsOf(plan.merge_sets[set]);
    rows.all += set_rows;
    rows.most_of_set = std::max(rows.most_of_set, set_rows);
    packer.Add(set_rows);
  }
  rows.blocks = packer.blocks();
  return rows;
}

void QueuedItems::Collect(const PlanView& plan, std::span<const int32_t> changed, const PrefixForestView& forest,
                          const SmCosts& costs) {
  for (const int32_t id : changed) rows_[id] = CountRows(plan, plan.items[id]);
  items_.clear();
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
                        .most_set_rows = rows.most_of_set,
                        .prompt = (item.flags & kItemMasked) != 0 ? item.page_row : -1});
      pieces_[id] = {};
    }
  }
  ChooseKinds(items_, spec_.num_kv_heads, num_sms_, costs);
  for (const QueuedItem& queued : items_) {
    if (!queued.dense) pieces_[queued.item].block_rows = costs.stream_rows();
  }
  if (!spec_.deterministic) prompts_.Align(items_);
  reads_.Count(items_, {.parent = forest.node_parent, .begin = forest.node_begin, .end = forest.node_end}, costs);
  for (const QueuedItem& queued : items_) pieces_[queued.item].read_once = queued.read_once;
}

}  // namespace coppice::attention::cuda
