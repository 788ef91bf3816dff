#include "engine/request_table.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coppice {

RequestState* RequestTable::Add(RequestPtr&& request) {
  RequestPtr& place = requests_[request->id];  // before anything is taken: there may be no memory for it
  place = std::move(request);
  num_deadlines_ += place->deadline.has_value();
  groups_.Join(place.get());
  return place.get();
}

RequestState* RequestTable::Find(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

std::span<RequestState* const> RequestTable::FindLate(RequestState::Clock::time_point now) {
  found_.clear();
  if (num_deadlines_ == 0) return found_;
  for (const auto& [id, request] : requests_) {
    if (request->deadline && now >= *request->deadline && request->unfinished > 0) found_.push_back(request.get());
  }
  std::ranges::sort(found_, {}, &RequestState::id);  // events in the same order in each run
  return found_;
}

std::span<RequestState* const> RequestTable::FindUnfinished() {
  found_.clear();
  for (const auto& [id, request] : requests_) {
    if (request->unfinished > 0) found_.push_back(request.get());
  }
  std::ranges::sort(found_, {}, &RequestState::id);
  return found_;
}

RequestPtr RequestTable::Remove(RequestId id) {
  const auto found = requests_.find(id);
  COPPICE_CHECK(found != requests_.end());
  RequestPtr request = std::move(found->second);
  num_deadlines_ -= request->deadline.has_value();
  requests_.erase(found);
  groups_.Leave(request.get());
  return request;
}

}  // namespace coppice
