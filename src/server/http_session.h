// One connection of the HTTP server: a coroutine that reads requests within limits and writes their answers. Runs on the one thread
// of its HttpSessions.
// Layer: server.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "server/http_request_parser.h"
#include "server/http_server.h"
#include "server/session_responder.h"
#include "server/unwritten_answers.h"

namespace coppice::server {

namespace asio = boost::asio;

// Every operation of a server says how it went; none throws.
inline constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// How long threads that serve connections wait for memory that others use. Where a coroutine's operation or the way back to it
// finds none, Boost.Asio ends the process (~awaitable_thread posts).
inline constexpr auto kPatience = std::chrono::seconds(10);

class HttpSession;

// What all connections of a server share.
struct HttpShared {
  HttpServerOptions options;
  HttpServer::Handler handler;
  HttpServer::PlanUpload plan_upload;
  asio::thread_pool handlers, writers;
  std::atomic<int32_t> num_connections{0};
  std::atomic<int64_t> body_bytes{0};    // of requests that are being read or wait for a handler
  std::atomic<int64_t> upload_bytes{0};  // likewise, in files
  std::shared_ptr<UnwrittenAnswers> unwritten;

  HttpShared(const HttpServerOptions& given, HttpServer::Handler handle, HttpServer::PlanUpload plan)
      : options(given),
        handler(std::move(handle)),
        plan_upload(std::move(plan)),
        handlers(static_cast<size_t>(given.handler_threads)),
        writers(static_cast<size_t>(given.writer_threads)),
        unwritten(std::make_shared<UnwrittenAnswers>(given.max_unwritten_bytes)) {}
};

// Those that one thread serves, which alone touches what is here.
struct HttpSessions {
  HttpShared* shared;
  std::unordered_set<HttpSession*> sessions;
  bool draining = false;
  asio::io_context io{1};
};

// A request's share of the bytes that bodies may take in memory; gives it back when it is destroyed.
class BodyBytes {
 public:
  BodyBytes() = default;
  BodyBytes(BodyBytes&& other) noexcept : total_(std::exchange(other.total_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyBytes& operator=(BodyBytes&& other) noexcept {
    std::swap(total_, other.total_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BodyBytes() {
    if (total_) *total_ -= bytes_;
  }
  // False, with nothing taken, if more than `limit` would be taken together.
  bool Take(std::atomic<int64_t>* total, int64_t bytes, int64_t limit) {
    if ((*total += bytes) > limit) {
      *total -= bytes;
      return false;
    }
    total_ = total;
    bytes_ = bytes;
    return true;
  }
  // Gives back all but `bytes`.
  void ShrinkTo(int64_t bytes) {
    if (!total_ || bytes >= bytes_) return;
    *total_ -= bytes_ - bytes;
    bytes_ = bytes;
  }

 private:
  std::atomic<int64_t>* total_ = nullptr;
  int64_t bytes_ = 0;
};

// One connection: requests one after the other, each read whole before its answer is written.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // Of a socket whose executor is that of `sessions`. On its thread.
  HttpSession(HttpSessions* sessions, asio::ip::tcp::socket socket);
  ~HttpSession();

  static asio::awaitable<void> Run(std::shared_ptr<HttpSession> self);
  // Ends the session if it waits for a request.
  void CloseIfIdle();
  void Close();

 private:
  // Reads a request and writes its answer; whether there may be another one.
  asio::awaitable<bool> Exchange();
  // The next request; false: the connection ends.
  asio::awaitable<bool> Read(HttpRequest* request, BodyBytes* body_bytes);
  // What follows the head that `parser` holds; false: as Read, with the error answered.
  asio::awaitable<bool> ReadBody(HttpRequestParser* parser, HttpRequest* request, BodyBytes* body_bytes);
  asio::awaitable<bool> ReadUpload(HttpRequestParser* parser, UploadPlan plan, HttpRequest* request, BodyBytes* body_bytes);
  // Gives the parser what has come, and waits for more where it needs more, `most` bytes at most; false: as ReadBody.
  asio::awaitable<bool> Advance(HttpRequestParser* parser, size_t most);
  // Tells a client that waits for it to send the body.
  asio::awaitable<bool> Continue(const HttpRequestParser& parser);
  asio::awaitable<bool> Refuse(int status, std::string_view message);
  asio::awaitable<bool> Refuse(const HttpRequestParser::Refusal& refusal) { return Refuse(refusal.status, refusal.message); }
  asio::awaitable<bool> Refuse(HttpResponse response);
  // Writes the answer as it comes; false: the client is gone or the connection must end.
  asio::awaitable<bool> WriteAnswer(std::shared_ptr<SessionResponder> responder);
  // There is more of the answer; `cut`: it is given up.
  void Wake(bool cut);
  // Returns when the client has closed its side; never while it has sent more than was read.
  asio::awaitable<void> UntilGone();
  // A whole answer; `responder`, which may be null, is told what it holds meanwhile.
  asio::awaitable<bool> WriteWhole(const HttpResponse& response, SessionResponder* responder);
  asio::awaitable<bool> WriteFile(const BodyFile& file, SessionResponder* responder);
  asio::awaitable<bool> WriteSource(TextSource* source, SessionResponder* responder);
  // The head of an answer whose end is not known: of a stream, or of a source.
  asio::awaitable<bool> WriteHead(std::string_view content_type, const HttpResponse::Headers& headers);
  asio::awaitable<bool> WriteText(std::string_view text);
  asio::awaitable<bool> WriteLast();

  HttpSessions& sessions_;
  HttpShared& shared_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  asio::steady_timer wake_;  // cancelled when an answer has news
  bool idle_ = false, closing_ = false;
  // Of the request under way:
  unsigned version_ = 11;
  bool keep_alive_ = false, head_only_ = false;
  std::string id_;
};

}  // namespace coppice::server
