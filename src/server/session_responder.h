// Where the handler's threads leave the answer to one request, and the connection's coroutine finds it. Knows no sockets.
// Layer: server.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/text_source.h"
#include "server/http.h"
#include "server/unwritten_answers.h"

namespace coppice::server {

class SessionResponder final : public Responder {
 public:
  // The next writes, in this order.
  struct Part {
    std::optional<HttpResponse> whole;
    bool begin_stream = false;
    HttpResponse::Headers headers;  // of that stream
    std::string text;
    std::unique_ptr<TextSource> source;
    bool end = false;
    bool cut = false;  // some of it is lost: the client is too far behind, or there was no memory
    bool empty() const { return !whole && !begin_stream && !end && !cut && text.empty() && !source; }
  };

  // `notify` is called, on any thread and with a lock held, when there is something to Take; never after Close. `cut`: what was
  // taken need not be written either. Where it throws, the waiting coroutine has to look by itself. `max_behind`: bytes of a stream
  // that may wait for the client. Bytes that the answer holds count in `all`.
  SessionResponder(std::function<void(bool cut)> notify, size_t max_behind, std::shared_ptr<UnwrittenAnswers> all)
      : notify_(std::move(notify)), max_behind_(max_behind), all_(std::move(all)), share_(all_, [this] { Cut(); }) {}

  void AddHeader(std::string name, std::string value) override;
  void Send(HttpResponse response) override;
  void BeginStream() override;
  void Write(std::string text) override;
  void Write(std::unique_ptr<TextSource> source) override;
  void EndStream() override;
  void WhenGone(std::function<void()> callback) override;
  // Whose the answer is (RequestPlan::share).
  void SetOwner(std::string owner) { share_.SetOwner(std::move(owner)); }
  // Gives the answer up, without memory.
  void Cut() noexcept;

  // The next part; the one that was taken before is written.
  Part Take();
  // Bytes that the part that was taken last holds by now.
  void Hold(size_t bytes);
  // Nothing is written any more. `gone`: since the client left, or reads too slowly.
  void Close(bool gone);
  bool was_cut() const;

 private:
  template <class Edit>
  void Change(Edit edit);
  // With the lock held:
  Part& Last();  // where text goes
  void Count();
  void Drop() noexcept;
  void Notify() noexcept;

  const std::function<void(bool)> notify_;
  const size_t max_behind_;
  const std::shared_ptr<UnwrittenAnswers> all_;
  mutable std::mutex mutex_;
  HttpResponse::Headers headers_;  // of the answer to come
  std::vector<Part> parts_;
  size_t taken_bytes_ = 0, taken_text_ = 0;
  bool begun_ = false, cut_ = false, closed_ = false, gone_ = false;
  std::function<void()> when_gone_;
  UnwrittenAnswers::Share share_;  // destroyed first: it calls Cut
};

// `responder` for a handler: gives an answer of 500 where the handler lets go of it without one, and ends a stream that it left
// open. Cuts it where there is no memory for either.
std::shared_ptr<Responder> WithFallback(std::shared_ptr<SessionResponder> responder);

}  // namespace coppice::server
