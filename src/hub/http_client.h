// GET over HTTP and HTTPS, by libcurl: redirects, ranges, proxies and certificates as it has them. Knows no files.
// Layer: hub.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "coppice/core/status.h"

namespace coppice::hub {

struct HttpRequest {
  std::string url;     // http or https; an https address is never left for an http one
  std::string bearer;  // a token for the host of `url` alone, not for those that it redirects to; empty: none
  std::string accept;  // media type; empty: any
  int64_t from = 0;    // first byte that is wanted
};

// How a body begins.
struct HttpBody {
  int64_t from = 0;  // the first byte that follows: HttpRequest::from, or 0 where a server sends the whole in spite of it
};

// `url` without a user's name and password, for messages.
std::string WithoutUser(const std::string& url);

// Thread-compatible; connections are kept for the next request.
class HttpClient {
 public:
  // should_stop is asked many times a second; may be empty.
  static Result<HttpClient> Create(std::function<bool()> should_stop);

  // Calls begin once, then write for each piece of the body. Their errors end the transfer and come back.
  // UNAVAILABLE: the connection broke, or a 408, 429 or 5xx: may work later. NOT_FOUND: 404. OUT_OF_RANGE: 416. CANCELLED:
  // should_stop. FAILED_PRECONDITION: anything else, such as 401 or a certificate.
  Status Get(const HttpRequest& request, const std::function<Status(const HttpBody&)>& begin,
             const std::function<Status(std::span<const std::byte>)>& write);
  // The whole body; RESOURCE_EXHAUSTED above 64 MiB. Tries again as Retry does.
  Result<std::string> GetText(const HttpRequest& request);
  // Runs `attempt` until it is something else than UNAVAILABLE, at most `attempts` times, with growing pauses. `progressed` says
  // whether the last one got further, which makes it count as the first; may be empty.
  Status Retry(const std::function<Status()>& attempt, const std::function<bool()>& progressed = {}) const;

 private:
  struct Free {
    void operator()(void* curl) const;
  };
  explicit HttpClient(void* curl) : curl_(curl) {}
  bool should_stop() const { return should_stop_ && should_stop_(); }

  std::unique_ptr<void, Free> curl_;
  std::function<bool()> should_stop_;
};

}  // namespace coppice::hub
