// Counts of shared reads. Layer: attention.
#include "attention/shared_reads.h"

#include <algorithm>
#include <utility>

namespace coppice::attention {
namespace {

// Tokens that an item reads: to the length of the branch whose row it reads through, and not before the windows of its queries.
int64_t TokensOf(const PlanView& view, const WorkItem& item, const PrefixForestView& forest) {
  int32_t first_seen = 0;
  if (view.spec.window > 0) {
    first_seen = INT32_MAX;
    for (const int32_t id : view.members.subspan(item.member_begin, item.member_count)) {
      const MergeSet& set = view.merge_sets[id];
      const int32_t first_query = forest.branch_kv_len[set.branch] - forest.branch_query_count[set.branch] + set.query_begin;
      first_seen = std::min(first_seen, std::max(0, first_query - view.spec.window + 1));
    }
  }
  const int32_t end = std::min(item.kv_end, forest.branch_kv_len[item.page_row]);
  return std::max(0, end - std::max(item.kv_begin, first_seen));
}

}  // namespace

PlanReads SharedReads::Count(const InspectablePlan& plan, const PrefixForestView& forest) {
  const PlanStats stats = plan.PlannedStats();
  const PlanView view = plan.View();
  // Lengths move windows; else a range that is shared stays what it is until the plan changes.
  if (stats.updates_replanned != counted_at_ || view.spec.window > 0) {
    counted_at_ = stats.updates_replanned;
    buffer_ = 1 - buffer_;
    buffers_[buffer_].assign(forest.branch_node.size(), {});
    seen_by_.assign(forest.branch_node.size(), 0);
    grouped_.assign(view.merge_sets.size(), 0);
    grouped_queries_ = items_seen_ = 0;
    bytes_claimed_ = 0;
    bytes_per_token_ = int64_t{2} * view.spec.num_kv_heads * view.spec.head_dim * static_cast<int64_t>(SizeOf(view.spec.kv_dtype));
    for (const std::span<const int32_t> queue : {view.compute_queue, view.bandwidth_queue}) {
      for (const int32_t id : queue) {
        const WorkItem& item = view.items[id];
        if (item.member_count == 1) continue;  // most items: leaves
        FindBranches(view, view.members.subspan(item.member_begin, item.member_count));
        if (branches_of_item_.size() > 1) CountItem(view, item, TokensOf(view, item, forest));
      }
    }
    Bound(stats.kv_bytes_read_unshared - stats.kv_bytes_read);
  }
  return {.kv_bytes_read = stats.kv_bytes_read,
          .kv_bytes_read_unshared = stats.kv_bytes_read_unshared,
          .kv_bytes_distinct = stats.kv_bytes_distinct,
          .grouped_queries = grouped_queries_,
          .branches = grouped_queries_ > 0 ? std::span<const BranchReads>(buffers_[buffer_]) : std::span<const BranchReads>()};
}

void SharedReads::FindBranches(const PlanView& view, std::span<const int32_t> members) {
  branches_of_item_.clear();
  ++items_seen_;
  for (const int32_t set : members) {
    const int32_t branch = view.merge_sets[set].branch;
    if (std::exchange(seen_by_[branch], items_seen_) != items_seen_) branches_of_item_.push_back(branch);
  }
}

// r branches read once what each would have read: each is spared (r - 1) / r of it, in whole bytes that sum up to what all are.
void SharedReads::CountItem(const PlanView& view, const WorkItem& item, int64_t tokens) {
  for (const int32_t id : view.members.subspan(item.member_begin, item.member_count)) {
    const MergeSet& set = view.merge_sets[id];
    if (!std::exchange(grouped_[id], 1)) grouped_queries_ += set.query_count;
    // A branch's first queries see all that it shares; other queries of it may lie in items of their own over the same range.
    if (set.query_begin == 0) buffers_[buffer_][set.branch].tokens += static_cast<int32_t>(tokens);
  }
  const auto sharers = static_cast<int64_t>(branches_of_item_.size());
  const int64_t spared_by_all = tokens * bytes_per_token_ * (sharers - 1);
  if (tokens == 0) return;
  bytes_claimed_ += spared_by_all;
  int64_t left_over = spared_by_all % sharers;
  for (const int32_t branch : branches_of_item_) {
    BranchReads& reads = buffers_[buffer_][branch];
    reads.kv_bytes_not_read += spared_by_all / sharers + (left_over-- > 0);
    reads.sharers = std::max(reads.sharers, static_cast<int32_t>(sharers));
  }
}

// Rows of one branch may be spread over more tiles than it would have alone, and each such tile counts it: all branches together
// are spared no more than the plan spares.
void SharedReads::Bound(int64_t bytes_saved) {
  bytes_saved = std::max<int64_t>(bytes_saved, 0);
  if (bytes_claimed_ <= bytes_saved) return;
  const double part = static_cast<double>(bytes_saved) / static_cast<double>(bytes_claimed_);
  for (BranchReads& reads : buffers_[buffer_])
    reads.kv_bytes_not_read = static_cast<int64_t>(static_cast<double>(reads.kv_bytes_not_read) * part);
}

}  // namespace coppice::attention
