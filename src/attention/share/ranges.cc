// From the roots down: what each shared node and each row tile reads. Layer: attention.
#include "attention/share/share_plan.h"

#include <algorithm>
#include <utility>

#include "attention/share/range_ends.h"

namespace coppice::attention {

// The tokens of a node that is read per child go to the ranges below it.
void SharePlan::AssignRanges() {
  changes_->ForEach([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = forest_->parent[n];
    node.range_begin = p == kNoParent ? 0 : nodes_[p].range_below;
    const int32_t range_below = node.shared() ? node.share_end : node.range_begin;
    if (range_below != std::exchange(node.range_below, range_below)) changes_->MarkChildren(n);
    const RangeId shared = NodeRange(n);
    if (node.shared()) {
      SetRange(shared, {.begin = std::max(node.range_begin, problem_.VisibleBegin(node.min_query)),
                        .end = node.share_end,
                        .rows = node.rows,
                        .num_sets = node.num_sets,
                        .planned_end = node.share_end,
                        .cached_end = node.run_begin,
                        .min_query = node.min_query,
                        .max_query = node.max_query});
    } else if (range(shared).rows > 0) {
      SetRange(shared, {});
    }
    for (int32_t b : forest_->BranchesAt(n)) {
      const int32_t kv_len = forest_->kv_len[b], first = kv_len - forest_->query_count[b];
      tiles_.ForEachTile(b, [&](const RowTile& tile) {
        const int32_t min_query = first + tile.first_query, end = min_query + tile.num_queries;
        const int32_t begin = std::max(range_below, problem_.VisibleBegin(min_query));
        if (!forest_->IsLive(n) && begin >= kv_len) return SetRange(tile.range_id, {});  // the shared node has all of it
        SetRange(tile.range_id, {.begin = begin,
                                 .end = tile.last ? kLive : end,
                                 .rows = tile.num_queries * problem_.spec.group_size(),
                                 .num_sets = tile.num_sets,
                                 .planned_end = std::max(PlannedEnd(problem_, *forest_, tiles_, b, end), begin),
                                 .cached_end = CachedEnd(node, tiles_, b),
                                 .min_query = min_query,
                                 .max_query = end - 1});
      });
    }
  });
}

void SharePlan::SetRange(RangeId range_id, const ShareRange& range) {
  ranges_ps_ -= range_ps_[range_id];
  ranges_[range_id] = range;
  range_ps_[range_id] = range.rows > 0 ? Picoseconds(costs_.Whole(range).RooflineNs()) : 0;
  ranges_ps_ += range_ps_[range_id];
}

}  // namespace coppice::attention
