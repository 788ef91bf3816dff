#include "engine/request_groups.h"

#include <algorithm>
#include <iterator>

namespace coppice {

void RequestGroups::Join(RequestState* request) {
  const RequestGroup& named = request->params.group;
  if (named.name.empty()) return;
  GroupState& group = groups_[Key(request->params.share_of, named.name)];
  group.any_over = &any_over_;
  idle_.erase(std::exchange(group.idle_since, 0));
  request->group = &group;  // before what may lack memory: Leave undoes either
  group.requests.push_back(request);
  if (named.min_answered > 0) group.wanted = std::min(group.wanted, named.min_answered);
  any_over_ |= group.is_over();
}

void RequestGroups::Leave(RequestState* request) {
  GroupState* const group = std::exchange(request->group, nullptr);
  if (group == nullptr) return;
  std::erase(group->requests, request);
  if (!group->requests.empty()) return;
  group->idle_since = ++clock_;
  idle_.emplace(clock_, Key(request->params.share_of, request->params.group.name));
  if (idle_.size() <= kMostIdle) return;
  groups_.erase(idle_.begin()->second);
  idle_.erase(idle_.begin());
}

const std::vector<RequestState*>& RequestGroups::FindOver() {
  over_.clear();
  if (!any_over_) return over_;
  for (const auto& [key, group] : groups_) {
    if (!group.is_over()) continue;
    std::ranges::copy_if(group.requests, std::back_inserter(over_),
                         [](const RequestState* request) { return request->unfinished > 0; });
  }
  any_over_ = !over_.empty();
  return over_;
}

}  // namespace coppice
