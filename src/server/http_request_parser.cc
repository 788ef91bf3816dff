#include "server/http_request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core.hpp>
#include <utility>

#include "core/check.h"
#include "core/exhaustion.h"
#include "server/host_name.h"

namespace coppice::server {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

constexpr size_t kShortestChunks = 5;  // "0\r\n\r\n"

template <class Message>
std::string_view ValueOf(const Message& message, http::field field) {
  const auto value = message[field];
  return {value.data(), value.size()};
}

// The reason to doubt the body's length; empty: nothing. A proxy that reads it otherwise would take a part of the body for a
// request.
template <class Message>
std::string_view FramingProblem(const Message& message) {
  const size_t lengths = message.count(http::field::content_length), encodings = message.count(http::field::transfer_encoding);
  if (lengths > 1) return "there is more than one Content-Length";
  if (ValueOf(message, http::field::content_length).find_first_not_of("0123456789") != std::string_view::npos)
    return "Content-Length is no number";
  if (encodings == 0) return {};
  if (message.version() < 11) return "HTTP/1.0 has no Transfer-Encoding";
  if (encodings > 1 || !beast::iequals(message[http::field::transfer_encoding], "chunked"))
    return "Transfer-Encoding is not chunked alone";
  if (lengths > 0) return "there are both Content-Length and Transfer-Encoding";
  return {};
}

// The server that an absolute target names, "http://HOST/...", as proxies ask; nothing: the target is a path.
std::optional<std::string_view> AuthorityOf(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (target.size() < kScheme.size() || !beast::iequals(target.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  target.remove_prefix(kScheme.size());
  return target.substr(0, target.find_first_of("/?"));
}

// The reason to doubt which host the request is for; empty: nothing (RFC 9112, sections 3.2 and 3.2.2).
template <class Message>
std::string_view HostProblem(const Message& message) {
  const size_t hosts = message.count(http::field::host);
  if (hosts > 1) return "there is more than one Host";
  if (hosts == 0 && message.version() >= 11) return "Host is missing";
  const std::string_view target(message.target().data(), message.target().size());
  if (!IsAuthority(ValueOf(message, http::field::host))) return "Host is no name or address, with or without a port";
  if (const auto authority = AuthorityOf(target); authority && (authority->empty() || !IsAuthority(*authority)))
    return "the target's host is no name or address, with or without a port";
  return {};
}

// Whether a header goes on in the next line, which RFC 9112 (section 5.2) forbids and others read as a header of its own. The
// library reads it as a blank.
bool HasFold(std::string_view head) {
  for (size_t end = head.find("\r\n"); end != head.npos; end = head.find("\r\n", end + 2)) {
    if (end + 2 < head.size() && (head[end + 2] == ' ' || head[end + 2] == '\t')) return true;
  }
  return false;
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

size_t HttpRequestParser::Parse(std::string_view bytes) {
  size_t taken = 0;
  beast::error_code error;
  while (taken < bytes.size() && !error && !NeedsMore(bytes.substr(taken))) {
    const size_t put = parser_.put(boost::asio::buffer(bytes.substr(taken)), error);
    const std::string_view lines = bytes.substr(taken, put);  // of a head: whole ones, with all that continues them
    taken += put;
    body_begun_ = body_begun_ || (state_ == State::kBody && put > 0);
    if (state_ == State::kHead && HasFold(lines)) {
      Refuse(400, "a header goes on in the next line");
      return taken;
    }
    if (state_ == State::kHead && parser_.is_header_done()) {
      state_ = State::kHasHead;
      std::string_view problem = FramingProblem(parser_.get());
      if (problem.empty()) problem = HostProblem(parser_.get());
      if (!problem.empty()) Refuse(400, std::string(problem));
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

// The library asserts that the first chunk, if it is the last one too, is there whole when it is looked at again.
bool HttpRequestParser::NeedsMore(std::string_view bytes) const {
  return state_ == State::kBody && !body_begun_ && parser_.chunked() && bytes.size() < kShortestChunks && bytes.starts_with('0');
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
  if (const std::optional<std::string_view> authority = AuthorityOf(target)) {
    request.host = std::string(*authority);
    target.remove_prefix(static_cast<size_t>(authority->data() + authority->size() - target.data()));
  }
  const size_t question = std::min(target.find('?'), target.size());
  request.method = std::string(message.method_string());
  request.path = question == 0 ? "/" : std::string(target.substr(0, question));  // "http://host?query"
  if (question < target.size()) request.query = std::string(target.substr(question + 1));
  request.authorization = header(http::field::authorization);
  request.content_type = header(http::field::content_type);
  request.content_encoding = header(http::field::content_encoding);
  request.preflight_method = header(http::field::access_control_request_method);
  request.preflight_headers = header(http::field::access_control_request_headers);
  request.origin = header(http::field::origin);
  request.traceparent = header("traceparent");
  const auto [first, last] = message.equal_range("x-forwarded-for");
  for (auto field = first; field != last; ++field) {
    if (field != first) request.forwarded_for += ',';
    request.forwarded_for += std::string_view(field->value().data(), field->value().size());
  }
  return request;
}

}  // namespace coppice::server
