#include "cli/bench/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"

namespace coppice::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

// Every operation says how it went; none throws.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr auto kSilence = std::chrono::minutes(10);
constexpr size_t kMaxBody = size_t{64} << 10;
constexpr size_t kReadBytes = size_t{64} << 10;

// A body of Beast's that hands on each piece, not copied and without the framing of chunks.
struct SinkBody {
  struct value_type {  // NOLINT(readability-identifier-naming): Beast's name
    std::function<Status(std::string_view)> sink;
    Status status;  // the sink's error
  };
  class reader {  // NOLINT(readability-identifier-naming)
   public:
    template <bool IsRequest, class Fields>
    reader(http::header<IsRequest, Fields>&, value_type& value) : value_(value) {}
    void init(const boost::optional<uint64_t>&, beast::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, beast::error_code& error) {
      size_t size = 0;
      for (const asio::const_buffer piece : beast::buffers_range_ref(buffers)) {
        size += piece.size();
        value_.status = value_.sink({static_cast<const char*>(piece.data()), piece.size()});
        if (value_.status.ok()) continue;
        error = asio::error::operation_aborted;
        return size;
      }
      error = {};
      return size;
    }
    void finish(beast::error_code& error) { error = {}; }

   private:
    value_type& value_;
  };
};

bool IsEventStream(const http::response<SinkBody>& message) {
  constexpr std::string_view kType = "text/event-stream";
  const auto type = message[http::field::content_type];
  return message.result() == http::status::ok && beast::iequals(type.substr(0, kType.size()), kType);
}

}  // namespace

Result<ServerUrl> ParseServerUrl(std::string_view text) {
  const auto bad = [&](std::string_view what) {
    return InvalidArgument(fmt::format("{} {}; expected http://HOST:PORT", Quoted(std::string(text)), what));
  };
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://")) return bad("is HTTPS, which is not measured");
  if (!text.starts_with(kScheme)) return bad("is no URL of HTTP");
  std::string_view rest = text.substr(kScheme.size());
  ServerUrl url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = std::string(rest.substr(slash));
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);  // of a client's base URL; targets have it
  if (text.find_first_of("?# \t\r\n@") != text.npos) return bad("has more than a host, a port and a path");
  rest = rest.substr(0, slash);
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == rest.npos) return bad("has an address without its end");
  const size_t colon = rest.find(':', bracket);
  url.host = std::string(bracket > 0 ? rest.substr(1, bracket - 1) : rest.substr(0, colon));
  if (url.host.empty() || (bracket > 0 && colon != bracket + 1 && bracket + 1 != rest.size())) return bad("names no host");
  if (colon == rest.npos) return url;
  url.port = std::string(rest.substr(colon + 1));
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(url.port.data(), url.port.data() + url.port.size(), port);
  if (error != std::errc() || end != url.port.data() + url.port.size() || port == 0) return bad("has no port from 1 to 65535");
  return url;
}

Status HttpClient::Resolve() {
  asio::io_context io{1};
  tcp::resolver resolver(io);
  beast::error_code error;
  for (const auto& entry : resolver.resolve(url_.host, url_.port, error)) endpoints_.push_back(entry.endpoint());
  return error ? Unavailable(fmt::format("{}: {}", url_.host, error.message())) : OkStatus();
}

asio::awaitable<Result<HttpAnswer>> HttpClient::Send(Ask ask) const {
  const auto failed = [this](std::string_view what, const beast::error_code& error) {
    return Unavailable(fmt::format("{} http://{}: {}", what, url_.authority(), error.message()));
  };
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(kSilence);
  const auto [refused, endpoint] = co_await stream.async_connect(endpoints_, kAwait);
  if (refused) co_return failed("no connection to", refused);
  beast::error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);

  http::request<http::string_body> request(http::string_to_verb(ask.method), url_.path + ask.target, 11);
  request.set(http::field::host, url_.authority());
  request.set(http::field::user_agent, "coppice-bench");
  request.keep_alive(false);
  if (!api_key_.empty()) request.set(http::field::authorization, "Bearer " + api_key_);
  if (!ask.body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(ask.body);
    request.prepare_payload();
  }
  const auto [unsent, written] = co_await http::async_write(stream, request, kAwait);
  if (unsent) co_return failed("cannot write to", unsent);

  HttpAnswer answer;
  http::response_parser<SinkBody> parser;
  parser.body_limit(boost::none);
  parser.eager(true);
  std::optional<bool> streams;  // once the header is there
  parser.get().body().sink = [&](std::string_view data) {
    if (!streams) streams = ask.on_data && IsEventStream(parser.get());
    if (*streams) return ask.on_data(data);
    answer.body += data.substr(0, kMaxBody - std::min(kMaxBody, answer.body.size()));
    return OkStatus();
  };
  beast::flat_buffer buffer(kReadBytes);
  while (!parser.is_done()) {
    stream.expires_after(kSilence);
    const auto [error, size] = co_await http::async_read_some(stream, buffer, parser, kAwait);
    if (!parser.get().body().status.ok()) co_return parser.get().body().status;
    if (error && error.category() == make_error_code(http::error::end_of_stream).category())
      co_return DataLoss(fmt::format("what http://{} sent is no complete answer of HTTP: {}", url_.authority(), error.message()));
    if (error) co_return failed("nothing more from", error);
  }
  answer.status = static_cast<int>(parser.get().result_int());
  co_return answer;
}

Result<HttpAnswer> HttpClient::SendAndWait(Ask ask) const {
  asio::io_context io{1};
  std::optional<Result<HttpAnswer>> answer;
  asio::co_spawn(
      io, [&]() -> asio::awaitable<void> { answer.emplace(co_await Send(std::move(ask))); }, asio::detached);
  io.run();
  return *std::move(answer);
}

}  // namespace coppice::cli
