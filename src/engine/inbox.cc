#include "engine/inbox.h"

#include <string>
#include <utility>

namespace coppice {

Result<RequestId> Inbox::Add(RequestPtr request) {
  const std::lock_guard lock(mutex_);
  if (max_waiting_ > 0 && waiting_ >= max_waiting_) {
    return ResourceExhausted("the queue is full: " + std::to_string(waiting_) + " requests wait, max_waiting is " +
                             std::to_string(max_waiting_) + "; try again later");
  }
  const RequestId id{next_id_};
  request->id = request->listener->request = id;
  alive_.insert(id);
  arrivals_.requests.push_back(std::move(request));
  ++next_id_;
  ++waiting_;
  arrived_.notify_all();
  return id;
}

Status Inbox::Cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (!alive_.contains(id)) {
    return NotFound("request " + std::to_string(static_cast<uint64_t>(id)) + " is not known or is done already");
  }
  arrivals_.cancelled.push_back(id);
  arrived_.notify_all();
  return OkStatus();
}

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
  const std::lock_guard lock(mutex_);
  std::swap(*arrivals, arrivals_);
  woken_ = false;
}

bool Inbox::has_requests() const {
  const std::lock_guard lock(mutex_);
  return !arrivals_.requests.empty();
}

void Inbox::WaitForArrivals(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, std::move(stop), [this] { return woken_ || !arrivals_.requests.empty() || !arrivals_.cancelled.empty(); });
}

void Inbox::Forget(std::span<const RequestId> done) {
  const std::lock_guard lock(mutex_);
  for (const RequestId id : done) alive_.erase(id);
}

int32_t Inbox::SetScheduled(int32_t waiting) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting + static_cast<int32_t>(arrivals_.requests.size());
  return waiting_;
}

}  // namespace coppice
