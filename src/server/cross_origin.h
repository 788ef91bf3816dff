// Which pages of other sites may use the server from a browser (the Fetch standard, section 3.3: CORS), as `--allow-origin` says.
// Layer: server.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "server/http.h"

namespace coppice::server {

// Thread-safe.
class CrossOrigin {
 public:
  // None.
  CrossOrigin() = default;
  // Each is an origin as a browser sends it ("https://example.org", "http://localhost:3000"), or "*": all. INVALID_ARGUMENT names
  // one that no browser would send.
  static Result<CrossOrigin> Parse(std::span<const std::string> origins);

  bool Allows(std::string_view origin) const;
  // Headers of every answer to a page of `origin`; none where it is not allowed or empty.
  HttpResponse::Headers AnswerHeaders(std::string_view origin) const;
  // The answer to what a browser asks before it sends a request that needs permission; nothing: `head` is no such question, or its
  // origin is not allowed. Needs no key: browsers send none with it.
  std::optional<HttpResponse> AnswerPreflight(const HttpRequest& head) const;

 private:
  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace coppice::server
