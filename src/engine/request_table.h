// The requests that the engine works on, by id and by group, from when they are taken until their last event is written.
// Layer: engine.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/request_groups.h"
#include "engine/request_state.h"

namespace coppice {

// Thread-compatible.
class RequestTable {
 public:
  // Takes the request, or throws for want of memory and leaves it.
  RequestState* Add(RequestPtr&& request);
  RequestState* Find(RequestId id) const;  // null: none
  // The unfinished ones whose deadline has come; valid until the next call. O(requests) where any has a deadline.
  std::span<RequestState* const> FindLate(RequestState::Clock::time_point now);
  // All unfinished ones; valid until the next call of either.
  std::span<RequestState* const> FindUnfinished();
  // The unfinished ones of groups that are over (RequestGroups); valid until the next call.
  std::span<RequestState* const> FindOver() { return groups_.FindOver(); }
  // Takes a request out that is done.
  RequestPtr Remove(RequestId id);

 private:
  std::unordered_map<RequestId, RequestPtr> requests_;
  int32_t num_deadlines_ = 0;  // requests with one
  std::vector<RequestState*> found_;
  RequestGroups groups_;
};

}  // namespace coppice
