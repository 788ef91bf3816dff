#include "engine/inbox.h"

#include <algorithm>
#include <string>
#include <utility>

namespace coppice {

Status Inbox::CheckRoom(const std::string& name, int32_t samples) const {
  if (max_waiting_ == 0 || waiting_samples_ == 0) return OkStatus();
  const auto found = waiting_of_names_.find(name);
  const int64_t own = found == waiting_of_names_.end() ? 0 : found->second;
  const int64_t wanted = own + samples;
  if (own == waiting_samples_) {
    if (wanted <= max_waiting_) return OkStatus();
  } else {
    const auto names = static_cast<int64_t>(waiting_of_names_.size()) + (own == 0);
    const bool fits = waiting_samples_ + samples <= max_waiting_;
    const bool is_small = wanted <= std::max<int64_t>(1, max_waiting_ / names);
    if (wanted <= std::max(1, max_waiting_ / 2) && (fits || is_small)) return OkStatus();
  }
  return ResourceExhausted("the queue is full: " + std::to_string(own) + " samples of this name wait" +
                           (own == waiting_samples_ ? "" : ", and those of others") + ", max_waiting is " +
                           std::to_string(max_waiting_) + "; try again later");
}

Result<RequestId> Inbox::Add(RequestPtr request) {
  const std::lock_guard lock(mutex_);
  if (Status room = CheckRoom(request->params.share_of, request->params.n); !room.ok()) return room;
  return Take(std::move(request));
}

RequestId Inbox::AddOwn(RequestPtr request) {
  const std::lock_guard lock(mutex_);
  return Take(std::move(request));
}

RequestId Inbox::Take(RequestPtr request) {
  const std::string& name = request->params.share_of;
  const int32_t samples = request->params.n;
  const RequestId id{next_id_};
  request->id = request->listener->request = id;
  // Allocations come first; where one fails, those before it leave no trace.
  std::vector<RequestPtr>& requests = arrivals_.requests;
  if (requests.size() == requests.capacity()) requests.reserve(2 * requests.size() + 8);
  const auto alive = alive_.emplace(id, Alive{.name = name, .samples = samples}).first;
  try {
    waiting_of_names_[name] += samples;
  } catch (...) {
    alive_.erase(alive);
    throw;
  }
  waiting_samples_ += samples;
  requests.push_back(std::move(request));
  ++next_id_;
  ++waiting_;
  arrived_.notify_all();
  return id;
}

void Inbox::EndWaiting(Alive* request) {
  if (!std::exchange(request->waits, false)) return;
  waiting_samples_ -= request->samples;
  const auto of_name = waiting_of_names_.find(request->name);
  of_name->second -= request->samples;
  if (of_name->second == 0) waiting_of_names_.erase(of_name);
}

double Inbox::Begin(std::span<const RequestId> begun) {
  if (begun.empty()) return 0;
  const Clock::time_point now = Clock::now();
  Clock::duration waited{};
  const std::lock_guard lock(mutex_);
  for (const RequestId id : begun) {
    const auto request = alive_.find(id);
    if (request == alive_.end()) continue;
    waited += now - request->second.arrived;
    EndWaiting(&request->second);
  }
  return std::chrono::duration<double>(waited).count();
}

template <class Id>
Status Inbox::Post(RequestId request, Id id, std::vector<Id>* list) {
  const std::lock_guard lock(mutex_);
  if (!alive_.contains(request)) return UnknownRequest(request);
  list->push_back(id);
  arrived_.notify_all();
  return OkStatus();
}

Status Inbox::Cancel(RequestId id) { return Post(id, id, &arrivals_.cancelled); }

Status Inbox::Prune(SampleId sample) { return Post(sample.request, sample, &arrivals_.pruned); }

Status Inbox::Release(RequestId id) { return Post(id, id, &arrivals_.released); }

void Inbox::Wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  arrived_.notify_all();
}

int32_t Inbox::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

void Inbox::Take(Arrivals* arrivals) {
  arrivals->requests.clear();
  arrivals->cancelled.clear();
  arrivals->released.clear();
  arrivals->pruned.clear();
  const std::lock_guard lock(mutex_);
  std::swap(*arrivals, arrivals_);
  woken_ = false;
}

bool Inbox::has_requests() const {
  const std::lock_guard lock(mutex_);
  return !arrivals_.requests.empty();
}

void Inbox::WaitForArrivals(std::stop_token stop, std::chrono::milliseconds at_most) {
  const auto has_come = [this] { return woken_ || !arrivals_.requests.empty() || arrivals_.ends_any(); };
  std::unique_lock lock(mutex_);
  if (at_most.count() == 0) {
    arrived_.wait(lock, std::move(stop), has_come);
  } else {
    arrived_.wait_for(lock, std::move(stop), at_most, has_come);
  }
}

void Inbox::Forget(std::span<const RequestId> done) {
  const std::lock_guard lock(mutex_);
  for (const RequestId id : done) {
    const auto request = alive_.find(id);
    if (request == alive_.end()) continue;
    EndWaiting(&request->second);
    alive_.erase(request);
  }
}

int32_t Inbox::SetScheduled(int32_t waiting) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting + static_cast<int32_t>(arrivals_.requests.size());
  return waiting_;
}

}  // namespace coppice
