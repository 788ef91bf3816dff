// Plain HTTP to a server that is being measured: one connection a request, bodies as they come. All on the caller's io_context.
// Layer: cli.
#pragma once

#include <boost/asio.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::cli {

// The parts of "http://host:port/path".
struct ServerUrl {
  std::string host, port = "80", path;  // the path without a slash at its end
  // As a Host header has it.
  std::string authority() const { return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port; }
};
// INVALID_ARGUMENT says what is wrong: another scheme, no host, a port that is none, a query.
Result<ServerUrl> ParseServerUrl(std::string_view text);

struct HttpAnswer {
  int status = 0;
  std::string body;  // at most 64 KiB of it; empty where it went to on_data
};

class HttpClient {
 public:
  struct Ask {
    std::string method = "GET", target;  // the target goes behind the URL's path
    std::string body;                    // JSON; empty: none
    // Takes what comes of an answer of status 200 that is a stream of events, instead of HttpAnswer::body. An error ends the
    // exchange.
    std::function<Status(std::string_view)> on_data;
  };

  // `api_key` is sent as a bearer token where it is not empty.
  HttpClient(ServerUrl url, std::string api_key) : url_(std::move(url)), api_key_(std::move(api_key)) {}

  // Looks the host's addresses up. Before the first Send. UNAVAILABLE says why there are none.
  Status Resolve();
  // UNAVAILABLE: no connection, or none any more, or nothing came for ten minutes. DATA_LOSS: no HTTP, or less of a body than was
  // announced.
  boost::asio::awaitable<Result<HttpAnswer>> Send(Ask ask) const;
  // Sends and waits, with an io_context of its own.
  Result<HttpAnswer> SendAndWait(Ask ask) const;

 private:
  const ServerUrl url_;
  const std::string api_key_;
  std::vector<boost::asio::ip::tcp::endpoint> endpoints_;
};

}  // namespace coppice::cli
