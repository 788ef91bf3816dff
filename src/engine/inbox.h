// Calls of other threads, until the thread that steps takes them: requests, in the order of their arrival, and those that are not
// wanted any more. Gives requests their ids, knows which are alive and which have begun, and shares the places of those that wait
// among the names that they have (Request::share_of); knows nothing else of what becomes of them. Layer: engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/request_state.h"

namespace coppice {

// Thread-safe; what is said to be the stepping thread's is called by one thread at a time.
class Inbox {
 public:
  // `max_waiting`: EngineOptions::max_waiting.
  explicit Inbox(int32_t max_waiting) : max_waiting_(max_waiting) {}

  // Gives the request its id and takes it. RESOURCE_EXHAUSTED where its samples have no room among those that wait: max_waiting of
  // one name while no other name has any, else half of them. Where others fill the queue, a name whose samples would be no more
  // than an equal share of it gets in all the same, and where nothing waits any request does. So with k names max_waiting
  // (1 + 1/2 + ... + 1/k) samples wait at most.
  Result<RequestId> Add(RequestPtr request);
  // The same for a request of the engine's own, for which there is always room.
  RequestId AddOwn(RequestPtr request);
  // NOT_FOUND where no such request is alive.
  Status Cancel(RequestId id);
  Status Prune(SampleId sample);
  Status Release(RequestId id);
  // The thread that waits for arrivals goes on: there is something to do that did not come through here.
  void Wake();
  // Requests that have not begun to run: those that were not taken yet, and the number given to SetScheduled.
  int32_t waiting() const;

  // ---- the stepping thread

  struct Arrivals {
    std::vector<RequestPtr> requests;
    std::vector<RequestId> cancelled, released;
    std::vector<SampleId> pruned;

    bool ends_any() const { return !cancelled.empty() || !released.empty() || !pruned.empty(); }
  };
  // Replaces `arrivals` with what has come since the last call. The vectors keep their memory between the two.
  void Take(Arrivals* arrivals);
  bool has_requests() const;
  // Sleeps until there is something to take, Wake was called since the last Take, `stop` is requested, or so long; 0: without end.
  void WaitForArrivals(std::stop_token stop, std::chrono::milliseconds at_most);
  // These requests run now for the first time: they do not wait any more. Returns the seconds that all of them have waited.
  double Begin(std::span<const RequestId> begun);
  // These requests are done: they cannot be cancelled any more.
  void Forget(std::span<const RequestId> done);
  // So many of the requests that were taken wait. Returns waiting().
  int32_t SetScheduled(int32_t waiting);

 private:
  using Clock = std::chrono::steady_clock;
  struct Alive {
    std::string name;
    int32_t samples = 0;
    Clock::time_point arrived = Clock::now();
    bool waits = true;
  };

  // Adds to a list of `arrivals_`.
  template <class Id>
  Status Post(RequestId request, Id id, std::vector<Id>* list);
  // With the lock held:
  Status CheckRoom(const std::string& name, int32_t samples) const;
  RequestId Take(RequestPtr request);
  void EndWaiting(Alive* request);

  const int32_t max_waiting_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any arrived_;
  Arrivals arrivals_;
  std::unordered_map<RequestId, Alive> alive_;       // submitted and not done
  std::map<std::string, int64_t> waiting_of_names_;  // samples of requests that have not begun; names without any are not in it
  int64_t waiting_samples_ = 0;                      // of all names
  uint64_t next_id_ = 1;
  int32_t waiting_ = 0;
  bool woken_ = false;
};

}  // namespace coppice
