#include "python/call_news.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace coppice::python {

CallNews::~CallNews() {
  if (descriptor_ >= 0) close(descriptor_);
}

void CallNews::Wake() const {
  const uint64_t one = 1;
  // It cannot fail but for a count of 2^64 - 1, at which the descriptor can be read all the same.
  if (descriptor_ >= 0) [[maybe_unused]]
    const ssize_t written = write(descriptor_, &one, sizeof one);
}

bool CallNews::Add(int32_t request, const StreamEvent& event) {
  const std::lock_guard lock(mutex_);
  if (event.index >= 0) {
    Piece& piece = pieces_[{request, event.index}];
    piece.sample.index = event.index;
    piece.sample.Append(event);
    piece.cached_tokens = std::max(piece.cached_tokens, event.cached_tokens);
    piece.weight_version = event.weight_version;
    if (!event.status.ok()) piece.status = event.status;
    if (keeps_ && event.finish_reason) ended_.emplace(request, event.index);
  }
  if (event.request_done) --unfinished_;
  const bool is_news = unfinished_ == 0 || (delivery_ == Delivery::kPieces && !pieces_.empty());
  return is_news && !std::exchange(announcing_, true);
}

void CallNews::Announce() {
  const std::lock_guard lock(mutex_);
  announcing_ = false;
  announced_ = !pieces_.empty();
  if (!has_news()) return;  // what the step brought was taken before its end
  Wake();
  news_.notify_all();
}

bool CallNews::Wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return news_.wait_for(lock, timeout, [&] { return has_news(); });
}

CallNews::Pieces CallNews::Take() {
  const std::lock_guard lock(mutex_);
  if (!has_news()) return {};
  announced_ = false;
  if (descriptor_ >= 0 && unfinished_ > 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(descriptor_, &count, sizeof count);
  }
  return std::exchange(pieces_, {});
}

bool CallNews::finished() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0 && pieces_.empty();
}

bool CallNews::HasEnded(const Place& place) const {
  const std::lock_guard lock(mutex_);
  return ended_.contains(place);
}

Result<int> CallNews::Descriptor() {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) {
    descriptor_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (descriptor_ < 0) {
      return Status(StatusCode::kResourceExhausted, fmt::format("eventfd: {}", std::strerror(errno)));
    }
    if (has_news()) Wake();
  }
  return descriptor_;
}

}  // namespace coppice::python
