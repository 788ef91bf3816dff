#include "server/http_request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core.hpp>
#include <utility>

#include "core/check.h"
#include "core/exhaustion.h"

namespace coppice::server {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

// What makes the body's length doubtful; empty: nothing. A proxy that reads it otherwise would take a part of the body for a
// request.
template <class Message>
std::string_view FramingProblem(const Message& message) {
  const size_t encodings = message.count(http::field::transfer_encoding);
  if (encodings == 0) return {};
  if (message.version() < 11) return "HTTP/1.0 has no Transfer-Encoding";
  if (encodings > 1 || !beast::iequals(message[http::field::transfer_encoding], "chunked"))
    return "Transfer-Encoding is not chunked alone";
  if (message.count(http::field::content_length) > 0) return "there are both Content-Length and Transfer-Encoding";
  return {};
}

}  // namespace

HttpRequestParser::HttpRequestParser(size_t max_header_bytes) : max_header_bytes_(max_header_bytes) {
  parser_.header_limit(static_cast<uint32_t>(max_header_bytes));
  parser_.body_limit(boost::none);  // is chosen when the head is there
}

size_t HttpRequestParser::Put(std::string_view bytes) {
  COPPICE_CHECK(state_ == State::kHead || state_ == State::kBody);
  size_t taken = 0;
  TakeMemory([&] { taken = Parse(bytes); });
  return taken;
}

template <class Work>
void HttpRequestParser::TakeMemory(const Work& work) {
  const MemoryPatience none(std::chrono::seconds(0));  // bodies are large: there is no use in waiting
  const Status status = CatchExhaustion("reading a request", [&] {
    work();
    return OkStatus();
  });
  if (!status.ok()) Refuse(503, std::string(status.message()));
}

void HttpRequestParser::ReserveBody() {
  COPPICE_CHECK(state_ == State::kBody || state_ == State::kDone);
  TakeMemory([&] { body().reserve(static_cast<size_t>(body_bytes().value_or(0))); });
}

size_t HttpRequestParser::Parse(std::string_view bytes) {
  size_t taken = 0;
  beast::error_code error;
  while (taken < bytes.size() && !error) {
    taken += parser_.put(boost::asio::buffer(bytes.substr(taken)), error);
    if (state_ == State::kHead && parser_.is_header_done()) {
      state_ = State::kHasHead;
      if (const std::string_view problem = FramingProblem(parser_.get()); !problem.empty()) Refuse(400, std::string(problem));
      return taken;
    }
    if (parser_.is_done()) {
      state_ = State::kDone;
      return taken;
    }
  }
  if (error && error != http::error::need_more) {
    RefuseBecauseOf(error);
  } else if (bytes.size() - taken > max_header_bytes_) {  // of one line between the chunks of a body
    RefuseBecauseOf(http::error::header_limit);
  }
  return taken;
}

void HttpRequestParser::AcceptBody(uint64_t max_bytes) {
  COPPICE_CHECK(state_ == State::kHasHead);
  max_body_bytes_ = max_bytes;
  if (body_bytes().value_or(0) > max_bytes) return RefuseTooLarge();
  state_ = parser_.is_done() ? State::kDone : State::kBody;
  parser_.body_limit(max_bytes);
  parser_.eager(true);
}

void HttpRequestParser::Refuse(int status, std::string message) {
  state_ = State::kRefused;
  refusal_ = {.status = status, .message = std::move(message)};
}

void HttpRequestParser::RefuseTooLarge() { Refuse(413, fmt::format("the body is larger than {} bytes", max_body_bytes_)); }

void HttpRequestParser::RefuseBecauseOf(const beast::error_code& error) {
  if (error == http::error::body_limit) return RefuseTooLarge();
  if (error == http::error::header_limit)
    return Refuse(431, fmt::format("the headers are larger than {} bytes", max_header_bytes_));
  Refuse(400, fmt::format("this is no HTTP request: {}", error.message()));
}

bool HttpRequestParser::waits_for_continue() const {
  return version() >= 11 && beast::iequals(parser_.get()[http::field::expect], "100-continue");
}

std::optional<uint64_t> HttpRequestParser::body_bytes() const {
  if (parser_.chunked()) return std::nullopt;
  return parser_.content_length().value_or(0);
}

HttpRequest HttpRequestParser::Head() const {
  const auto& message = parser_.get();
  const auto header = [&](auto name) { return std::string(message[name]); };
  HttpRequest request;
  std::string_view target(message.target().data(), message.target().size());
  request.host = header(http::field::host);
  if (constexpr std::string_view kScheme = "http://"; target.starts_with(kScheme)) {  // as proxies ask
    const size_t slash = target.find('/', kScheme.size());
    request.host = std::string(target.substr(0, slash).substr(kScheme.size()));
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  const size_t question = std::min(target.find('?'), target.size());
  request.method = std::string(message.method_string());
  request.path = std::string(target.substr(0, question));
  if (question < target.size()) request.query = std::string(target.substr(question + 1));
  request.authorization = header(http::field::authorization);
  request.content_type = header(http::field::content_type);
  request.origin = header(http::field::origin);
  request.traceparent = header("traceparent");
  return request;
}

}  // namespace coppice::server
