// Sockets: accepts connections, reads requests within limits, writes answers and streams, notices clients that leave. Knows no
// routes.
// Layer: server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coppice/core/status.h"
#include "server/http.h"

namespace coppice::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, not a name
  uint16_t port = 8000;            // 0: one that is free
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{10} << 20;           // larger ones are refused with 413
  size_t max_total_body_bytes = size_t{512} << 20;    // of all requests that are not parsed yet; more are refused with 503
  int64_t max_total_upload_bytes = int64_t{2} << 30;  // likewise, of bodies that go into files
  int32_t max_connections = 4096;                     // more are closed at once
  int32_t handler_threads = 2;  // on which POST, PUT and DELETE requests are handled, so that reading and writing go on meanwhile
  int32_t writer_threads = 2;   // on which large answers become text, a piece at a time
  std::chrono::milliseconds idle_timeout{75'000};    // a connection without a request
  std::chrono::milliseconds read_timeout{30'000};    // from a request's first byte to its last; of an upload, for each 256 KiB
  std::chrono::milliseconds write_timeout{60'000};   // of one write to a client that does not read
  std::chrono::milliseconds heartbeat{15'000};       // a stream that is silent for so long gets a comment
  size_t max_behind_bytes = size_t{4} << 20;         // of a stream; a client that far behind is dropped
  int64_t max_unwritten_bytes = int64_t{256} << 20;  // that all answers may hold (UnwrittenAnswers); 0: no limit
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;
  // Asked when a request's head is there, its body not yet; nothing: the body goes into memory.
  using PlanUpload = std::function<std::optional<UploadPlan>(const HttpRequest& head)>;

  // Listens; connections are accepted by Run. `handler` and `plan_upload`, which may be empty, are called on several threads.
  // UNAVAILABLE says why the address cannot be had.
  static Result<std::unique_ptr<HttpServer>> Create(const HttpServerOptions& options, Handler handler, PlanUpload plan_upload = {});
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  // Serves until Drain has been called and every answer is written, or Stop has been called: on the calling thread, and, what
  // watches the server (GET /health, /ready, /version as a connection's first request), on one that nothing else keeps busy.
  virtual void Run() = 0;
  // Accepts no more, closes what is idle, lets answers under way end. Thread-safe, and may be called again.
  virtual void Drain() = 0;
  // Closes everything now. Thread-safe.
  virtual void Stop() = 0;
  virtual int32_t num_connections() const = 0;  // thread-safe
};

}  // namespace coppice::server
