#include "server/session_responder.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "core/exhaustion.h"
#include "server/errors.h"

namespace coppice::server {

namespace {

size_t BytesOf(const SessionResponder::Part& part) {
  size_t bytes = part.text.size() + (part.source ? part.source->held_bytes() : 0);
  if (part.whole) bytes += part.whole->body.size() + (part.whole->source ? part.whole->source->held_bytes() : 0);
  return bytes;
}

}  // namespace

template <class Edit>
void SessionResponder::Change(Edit edit) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || cut_) return;
    edit();
    Count();
    Notify();
  }
  all_->MakeRoom();
}

SessionResponder::Part& SessionResponder::Last() {
  if (parts_.empty() || parts_.back().source) parts_.emplace_back();
  return parts_.back();
}

void SessionResponder::Count() {
  size_t held = taken_bytes_, behind = taken_text_;
  for (const Part& part : parts_) {
    held += BytesOf(part);
    behind += part.text.size();
  }
  if (behind > max_behind_) return Drop();
  share_.Hold(static_cast<int64_t>(held));
}

void SessionResponder::Drop() noexcept {
  cut_ = true;
  parts_.clear();
  share_.Hold(0);
}

// With the lock: after Close, the coroutine that it wakes may be gone.
void SessionResponder::Notify() noexcept {
  try {
    notify_(cut_);
  } catch (const std::bad_alloc&) {  // the next heartbeat finds it
  }
}

void SessionResponder::AddHeader(std::string name, std::string value) {
  const std::lock_guard lock(mutex_);
  headers_.emplace_back(std::move(name), std::move(value));
}

void SessionResponder::Send(HttpResponse response) {
  Change([&] {
    if (std::exchange(begun_, true)) return;
    std::ranges::move(headers_, std::back_inserter(response.headers));
    Part& part = Last();
    part.whole = std::move(response);
    part.end = true;
  });
}

void SessionResponder::BeginStream() {
  Change([&] {
    Part& part = Last();
    part.begin_stream = !std::exchange(begun_, true);
    part.headers = std::move(headers_);
  });
}

void SessionResponder::Write(std::string text) {
  Change([&] {
    Part& part = Last();
    if (part.text.empty()) {
      part.text = std::move(text);
    } else {
      part.text += text;
    }
  });
}

void SessionResponder::Write(std::unique_ptr<TextSource> source) {
  Change([&] { Last().source = std::move(source); });
}

void SessionResponder::EndStream() {
  Change([&] {
    if (parts_.empty()) parts_.emplace_back();
    parts_.back().end = true;
  });
}

void SessionResponder::WhenGone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      when_gone_ = std::move(callback);
      return;
    }
    if (!gone_) return;  // the answer is complete
  }
  callback();
}

void SessionResponder::Cut() noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_ || cut_) return;
  Drop();
  Notify();
}

bool SessionResponder::was_cut() const {
  const std::lock_guard lock(mutex_);
  return cut_;
}

SessionResponder::Part SessionResponder::Take() {
  const std::lock_guard lock(mutex_);
  if (cut_) return {.cut = true};
  Part part;
  if (!parts_.empty()) {
    part = std::move(parts_.front());
    parts_.erase(parts_.begin());
  }
  taken_text_ = part.text.size();
  taken_bytes_ = BytesOf(part);
  Count();
  return part;
}

void SessionResponder::Hold(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || cut_) return;
    taken_bytes_ = bytes;
    Count();
  }
  all_->MakeRoom();
}

void SessionResponder::Close(bool gone) {
  std::function<void()> callback;
  std::vector<Part> parts;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    gone_ = gone;
    parts.swap(parts_);
    share_.Hold(0);
    std::swap(callback, when_gone_);
  }
  if (gone && callback) callback();
}

std::shared_ptr<Responder> WithFallback(std::shared_ptr<SessionResponder> responder) {
  SessionResponder* const raw = responder.get();
  return {raw, [owner = std::move(responder)](Responder*) mutable {
            const Status answered = CatchExhaustion("answering a request", [&] {
              owner->Send(ErrorResponse(500, "the request got no answer"));
              return OkStatus();
            });
            if (!answered.ok()) owner->Cut();
            owner->EndStream();
            owner.reset();
          }};
}

}  // namespace coppice::server
