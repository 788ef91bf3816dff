#include "server/session_responder.h"

#include <new>
#include <utility>

#include "core/exhaustion.h"
#include "server/errors.h"

namespace coppice::server {

template <class Edit>
void SessionResponder::Change(Edit edit) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  edit(part_);
  try {
    notify_();                       // with the lock: after Close, whom it wakes may be gone
  } catch (const std::bad_alloc&) {  // the next heartbeat finds it
  }
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
    if (part.cut) return;
    if (part.text.size() + text.size() > max_unwritten_) {
      part.cut = true;
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

void SessionResponder::Cut() noexcept {
  Change([](Part& part) { part.cut = true; });
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
            const Status told = CatchExhaustion("answering a request", [&] {
              owner->Send(ErrorResponse(500, "the request got no answer"));
              return OkStatus();
            });
            if (!told.ok()) owner->Cut();
            owner->EndStream();
            owner.reset();
          }};
}

}  // namespace coppice::server
