#include "runner/grouped_rows.h"

#include <algorithm>
#include <utility>

namespace coppice {

int32_t GroupedRows::Count(const attention::AttentionPlan& plan, int64_t replanned) {
  if (replanned == counted_at_) return count_;
  counted_at_ = replanned;
  count_ = 0;
  const attention::PlanView view = plan.View();
  grouped_.assign(view.merge_sets.size(), 0);
  const auto count_item = [&](int32_t id) {
    const attention::WorkItem& item = view.items[id];
    const auto members = view.members.subspan(item.member_begin, item.member_count);
    const int32_t branch = view.merge_sets[members.front()].branch;
    if (std::ranges::all_of(members, [&](int32_t set) { return view.merge_sets[set].branch == branch; })) return;
    for (const int32_t set : members) {
      if (!std::exchange(grouped_[set], 1)) count_ += view.merge_sets[set].query_count;
    }
  };
  for (const int32_t id : view.compute_queue) count_item(id);
  for (const int32_t id : view.bandwidth_queue) count_item(id);
  return count_;
}

}  // namespace coppice
