#include "server/session_responder.h"

#include <utility>

#include "server/errors.h"

namespace coppice::server {

template <class Edit>
void SessionResponder::Change(Edit edit) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  edit(part_);
  notify_();  // with the lock: after Close, whom it wakes may be gone
}

void SessionResponder::Send(HttpResponse response) {
  Change([&](Part& part) {
    if (std::exchange(begun_, true)) return;
    part.whole = std::move(response);
    part.end = true;
  });
}

void SessionResponder::BeginStream() {
  Change([&](Part& part) { part.begin_stream = !std::exchange(begun_, true); });
}

void SessionResponder::Write(std::string text) {
  Change([&](Part& part) {
    if (part.too_slow) return;
    if (part.text.size() + text.size() > max_unwritten_) {
      part.too_slow = true;
      part.text = {};
    } else if (part.text.empty()) {
      part.text = std::move(text);
    } else {
      part.text += text;
    }
  });
}

void SessionResponder::EndStream() {
  Change([](Part& part) { part.end = true; });
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

SessionResponder::Part SessionResponder::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(part_, Part());
}

void SessionResponder::Close(bool gone) {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    gone_ = gone;
    part_ = Part();
    std::swap(callback, when_gone_);
  }
  if (gone && callback) callback();
}

std::shared_ptr<Responder> WithFallback(std::shared_ptr<SessionResponder> responder) {
  SessionResponder* const raw = responder.get();
  return {raw, [owner = std::move(responder)](Responder*) mutable {
            owner->Send(ErrorResponse(500, "the request got no answer"));
            owner->EndStream();
            owner.reset();
          }};
}

}  // namespace coppice::server
