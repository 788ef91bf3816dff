// HTTP as the routes see it: a request that is read whole, and where its answer goes. Knows no sockets, so that routes are tested
// without any.
// Layer: server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/text_source.h"

namespace coppice::server {

// The status logged where the client has left, as nginx does: it is not sent.
inline constexpr int kClientLeft = 499;

// A file that is a body.
struct BodyFile {
  FileDescriptor file;
  int64_t size = 0;  // bytes, from the file's beginning
};

struct HttpRequest {
  std::string method;  // as sent: "GET"
  std::string path;    // of the target, without the query
  std::string host;    // of the target or the Host header, with the port; empty: not sent
  std::string query;   // after '?'; empty: none
  std::string body;
  std::shared_ptr<const BodyFile> body_file;  // instead of `body`, where the RequestPlan asks for it
  // Headers; empty: not sent. X-Forwarded-For may come several times, and is all of them then.
  std::string authorization, content_type, content_encoding, traceparent, origin, forwarded_for;
  std::string preflight_method, preflight_headers;  // Access-Control-Request-Method and -Headers
  std::string id;                                   // names the request in logs and in the answer's x-request-id
  std::string peer;                                 // address of the client
};

struct HttpResponse {
  using Headers = std::vector<std::pair<std::string, std::string>>;

  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers = {};                            // besides content-type, content-length and x-request-id
  std::shared_ptr<const BodyFile> file = nullptr;  // instead of `body`
  std::shared_ptr<TextSource> source = nullptr;    // likewise; it becomes text while the client takes it
  std::string reason = {};                         // of an error: the message in `body`, for the log
};

// An answer of `bytes`, about. A small one becomes text at once, on the calling thread; all others while the client takes them.
inline HttpResponse BodyResponse(std::unique_ptr<TextSource> body, double bytes) {
  constexpr double kSmall = 32 << 10;  // a quarter of a millisecond
  if (bytes > kSmall) return {.source = std::move(body)};
  return {.body = TextOf(body.get())};
}

// Where the answer to one request goes: Send once, or BeginStream, any number of Write, EndStream. Thread-safe; nothing blocks.
// Writes after the client is gone are dropped. If the last owner lets go of it before there is an answer, the client gets a 500.
class Responder {
 public:
  virtual ~Responder() = default;

  // Of the answer, whole or a stream; before it begins.
  virtual void AddHeader(std::string /*name*/, std::string /*value*/) {}
  virtual void Send(HttpResponse response) = 0;
  // 200 and text/event-stream. While nothing is written, comments keep the connection alive.
  virtual void BeginStream() = 0;
  virtual void Write(std::string text) = 0;
  virtual void Write(std::unique_ptr<TextSource> source) = 0;
  virtual void EndStream() = 0;
  // `callback` is called when the client has gone before the answer's end, on any thread; at once if it has already. One callback.
  virtual void WhenGone(std::function<void()> callback) = 0;
};

// The plan of a request, by its head alone, before a body is awaited.
struct RequestPlan {
  std::optional<HttpResponse> refusal;  // sent instead of reading a body; where there is one, the connection ends
  // Else: answers the request when its body has come, now or later. Destroyed where it does not come.
  std::function<void(HttpRequest, std::shared_ptr<Responder>)> handle;
  bool takes_time = false;                // `handle` parses or waits for a disk: it is called on one of the threads for that
  std::string share;                      // whose share of the room for bodies and answers, and of those threads, the request takes
  std::optional<int64_t> max_body_bytes;  // larger ones are refused with 413; nothing: the server's limit holds
  bool is_gzip = false;                   // the body is decoded as it comes; all limits are on what it is then
  HttpResponse::Headers answer_headers;   // that every answer to it has besides its own, the refusal too
  std::string body_folder;                // where the body goes into a file without a name; empty: it goes into memory
};

}  // namespace coppice::server
