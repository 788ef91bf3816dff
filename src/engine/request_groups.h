// Groups of requests (Request::group): how many samples of each have ended by themselves, and which groups are over, so that the
// rest of them ends. Ends nothing itself. Layer: engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/request_state.h"

namespace coppice {

struct GroupState {
  std::vector<RequestState*> requests;  // that the engine has
  int32_t wanted = INT32_MAX;           // the smallest RequestGroup::min_answered
  int32_t answered = 0;                 // samples
  uint64_t idle_since = 0;              // when it lost its last request; 0: it has some
  bool* any_over = nullptr;             // of all groups

  bool is_over() const { return answered >= wanted; }
  // A sample of it has ended.
  void Note(FinishReason reason) {
    answered += reason == FinishReason::kStop || reason == FinishReason::kLength;
    *any_over |= is_over();
  }
};

// Thread-compatible.
class RequestGroups {
 public:
  // Groups without a request that are remembered, of all names together; beyond, the one that lost its last request first is
  // forgotten.
  static constexpr size_t kMostIdle = 4096;

  RequestGroups() = default;
  RequestGroups(const RequestGroups&) = delete;

  // A request that the engine has taken; sets its group, if it names one.
  void Join(RequestState* request);
  // It is done: nothing points to it any more.
  void Leave(RequestState* request);
  // The unfinished requests of groups that are over; valid until the next call. O(groups) where there may be some.
  const std::vector<RequestState*>& FindOver();
  size_t size() const { return groups_.size(); }

 private:
  using Key = std::pair<std::string, std::string>;  // Request::share_of, RequestGroup::name

  std::map<Key, GroupState> groups_;
  std::map<uint64_t, Key> idle_;  // by idle_since
  uint64_t clock_ = 0;            // counts what went idle
  bool any_over_ = false;
  std::vector<RequestState*> over_;
};

}  // namespace coppice
