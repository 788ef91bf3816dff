// Where the handler's threads leave the answer to one request, and the connection's coroutine finds it. Knows no sockets.
// Layer: server.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/http.h"

namespace coppice::server {

class SessionResponder final : public Responder {
 public:
  // What is to be written next.
  struct Part {
    std::optional<HttpResponse> whole;
    bool begin_stream = false, end = false;
    bool cut = false;  // some of it is lost: more than `max_unwritten` bytes waited for the client, or there was no memory
    std::string text;
    bool empty() const { return !whole && !begin_stream && !end && !cut && text.empty(); }
  };

  // `notify` is called, on any thread and with a lock held, when there is something to Take; never after Close. Where it throws,
  // who waits has to look by himself.
  SessionResponder(std::function<void()> notify, size_t max_unwritten)
      : notify_(std::move(notify)), max_unwritten_(max_unwritten) {}

  void Send(HttpResponse response) override;
  void BeginStream() override;
  void Write(std::string text) override;
  void EndStream() override;
  void WhenGone(std::function<void()> callback) override;
  // Gives the answer up, without memory.
  void Cut() noexcept;

  Part Take();
  // Nothing is written any more. `gone`: since the client left, or reads too slowly.
  void Close(bool gone);

 private:
  template <class Edit>
  void Change(Edit edit);

  const std::function<void()> notify_;
  const size_t max_unwritten_;
  std::mutex mutex_;
  Part part_;
  bool begun_ = false, closed_ = false, gone_ = false;
  std::function<void()> when_gone_;
};

// `responder` for a handler: gives an answer of 500 where the handler lets go of it without one, and ends a stream that it left
// open. Cuts it where there is no memory for either.
std::shared_ptr<Responder> WithFallback(std::shared_ptr<SessionResponder> responder);

}  // namespace coppice::server
