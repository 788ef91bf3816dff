// Sockets: accepts connections, reads requests within limits, writes answers and streams, notices clients that leave. Knows no
// routes.
// Layer: server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "coppice/core/status.h"
#include "server/http.h"
#include "server/peer.h"

namespace coppice::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, not a name
  uint16_t port = 8000;            // 0: one that is free
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{10} << 20;  // larger ones are refused with 413
  // Of all requests that are not parsed yet, what has come of their bodies. A share has a quarter at most (ByteBudget); more are
  // refused with 429 or 503.
  int64_t max_total_body_bytes = int64_t{256} << 20;
  int64_t max_total_upload_bytes = int64_t{2} << 30;  // likewise, of bodies that go into files
  // More take the places of those on which nothing happens, of the peer that has the most (ConnectionTable); where there are none,
  // they are closed, but for some that watch the server.
  int32_t max_connections = 4096;
  TrustedProxies trusted_proxies;
  int32_t handler_threads = 4;                       // for requests that take time (FairThreads)
  int32_t writer_threads = 2;                        // on which large answers become text, a piece at a time; likewise
  std::chrono::milliseconds idle_timeout{75'000};    // a connection without a request
  std::chrono::milliseconds head_timeout{10'000};    // from a request's first byte to the end of its head
  std::chrono::milliseconds body_timeout{30'000};    // of its body, beside the time that min_body_rate leaves for what has come
  int64_t min_body_rate = int64_t{32} << 10;         // bytes in a second
  std::chrono::milliseconds write_timeout{60'000};   // of one write to a client that does not read
  std::chrono::milliseconds heartbeat{15'000};       // a stream that is silent for so long gets a comment
  size_t max_behind_bytes = size_t{4} << 20;         // of a stream; a client that far behind is dropped
  int64_t max_unwritten_bytes = int64_t{256} << 20;  // that all answers may hold (UnwrittenAnswers); 0: no limit
};

class HttpServer {
 public:
  // Asked when a request's head is there, its body not yet.
  using Planner = std::function<RequestPlan(HttpRequest head)>;

  // Listens; connections are accepted by Run. `planner` is called on several threads. UNAVAILABLE says why the address cannot be
  // had.
  static Result<std::unique_ptr<HttpServer>> Create(const HttpServerOptions& options, Planner planner);
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
