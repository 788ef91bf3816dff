// One connection of the HTTP server: a coroutine that reads requests within limits and writes their answers. Runs on the one thread
// of its HttpSessions.
// Layer: server.
#pragma once

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "server/byte_budget.h"
#include "server/connection_table.h"
#include "server/fair_threads.h"
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

// Connections that watch a server which has no other place left.
inline constexpr int32_t kProbePlaces = 64;

class HttpSession;

// The RatePolicy (Boost.Beast) of connections: a write gives the system so many bytes at most and lets others of its thread go on
// before the next ones. Where hundreds of large answers are written, a small one waits for that many short writes.
class WriteTurns {
  static constexpr size_t kBytes = size_t{16} << 10;

  friend class boost::beast::rate_policy_access;
  static size_t available_read_bytes() { return std::numeric_limits<size_t>::max(); }
  static size_t available_write_bytes() { return kBytes; }
  static void transfer_read_bytes(size_t /*bytes*/) {}
  static void transfer_write_bytes(size_t /*bytes*/) {}
  static void on_timer() {}
};

// Shared by all connections of a server.
struct HttpShared {
  HttpServerOptions options;
  HttpServer::Planner planner;
  ConnectionTable connections, probes{kProbePlaces};
  ByteBudget body_bytes;    // of requests that are being read or wait for a handler
  ByteBudget upload_bytes;  // likewise, in files
  FairThreads handlers, writers;
  std::shared_ptr<UnwrittenAnswers> unwritten;

  HttpShared(const HttpServerOptions& given, HttpServer::Planner plan)
      : options(given),
        planner(std::move(plan)),
        connections(given.max_connections),
        body_bytes(given.max_total_body_bytes),
        upload_bytes(given.max_total_upload_bytes),
        handlers(given.handler_threads),
        writers(given.writer_threads),
        unwritten(std::make_shared<UnwrittenAnswers>(given.max_unwritten_bytes)) {}
};

// Those that one thread serves, which alone touches what is here.
struct HttpSessions {
  HttpShared* shared;
  std::unordered_set<HttpSession*> sessions;
  bool draining = false;
  asio::io_context io{1};
};

// One connection: requests one after the other, each read whole before its answer is written.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // Of a socket whose executor is that of `sessions`. On its thread.
  HttpSession(HttpSessions* sessions, asio::ip::tcp::socket socket, std::unique_ptr<ConnectionTable::Place> place);
  ~HttpSession();

  // A request that is there whole.
  struct Incoming {
    HttpRequest request;
    RequestPlan plan;
    std::shared_ptr<ByteBudget::Held> held;  // by its body; copies of this share it
  };

  static asio::awaitable<void> Run(std::shared_ptr<HttpSession> self);
  // Ends the session if it waits for a request.
  void CloseIfIdle();
  void Close();

 private:
  // Reads a request and writes its answer; whether there may be another one.
  asio::awaitable<bool> Exchange();
  enum class Read : uint8_t {
    kRequest,
    kRefused,  // and answered; there may be another one
    kEnd,      // the connection ends, with the error answered
  };
  asio::awaitable<Read> ReadRequest(Incoming* incoming);
  // The head of the next request; false: kEnd.
  asio::awaitable<bool> ReadHead(HttpRequestParser* parser);
  // Of the head that `parser` holds.
  HttpRequest TakeHead(const HttpRequestParser& parser);
  // The body behind the head, decoded where the plan says so, into `request`; `held` grows with it. False: as ReadHead.
  asio::awaitable<bool> ReadBody(HttpRequestParser* parser, ByteBudget::Held* held, HttpRequest* request);
  asio::awaitable<bool> ReadGzip(HttpRequestParser* parser, size_t max_bytes, ByteBudget::Held* held, HttpRequest* request);
  asio::awaitable<bool> ReadUpload(HttpRequestParser* parser, const std::string& folder, ByteBudget::Held* held,
                                   HttpRequest* request);
  // Takes in what has come of a body whose first `taken` bytes were taken out of the parser, if there is room for it, and waits for
  // the next part where there is one. False: as ReadHead.
  asio::awaitable<bool> AdvanceBody(HttpRequestParser* parser, int64_t taken, ByteBudget::Held* held);
  // Counts what the request holds by now; false: as ReadHead.
  asio::awaitable<bool> Hold(ByteBudget::Held* held, int64_t bytes);
  // Gives the parser what has come.
  void Feed(HttpRequestParser* parser);
  // Waits for more bytes, `most` of them at most; false: as ReadHead, and nothing was answered.
  asio::awaitable<bool> Receive(size_t most);
  // Asks a client that waits for it to send the body.
  asio::awaitable<bool> Continue(const HttpRequestParser& parser);
  asio::awaitable<bool> Refuse(int status, std::string_view message);
  asio::awaitable<bool> Refuse(const HttpRequestParser::Refusal& refusal) { return Refuse(refusal.status, refusal.message); }
  asio::awaitable<bool> Refuse(HttpResponse response);
  // Writes the answer as it comes; false: the client is gone or the connection must end.
  asio::awaitable<bool> WriteAnswer(std::shared_ptr<SessionResponder> responder);
  // There is more of the answer; `cut`: it is given up.
  void Wake(bool cut);
  // Returns when the client has closed its side.
  asio::awaitable<void> UntilGone();
  // A whole answer; `responder`, which may be null, counts what it holds meanwhile.
  asio::awaitable<bool> WriteWhole(const HttpResponse& response, SessionResponder* responder);
  asio::awaitable<bool> WriteFile(const BodyFile& file, SessionResponder* responder);
  asio::awaitable<bool> WriteSource(TextSource* source, SessionResponder* responder);
  // The head of an answer whose end is not known: of a stream, or of a source.
  asio::awaitable<bool> WriteHead(std::string_view content_type, const HttpResponse::Headers& headers);
  asio::awaitable<bool> WriteText(std::string_view text);
  asio::awaitable<bool> WriteLast();

  HttpSessions& sessions_;
  HttpShared& shared_;
  boost::beast::basic_stream<asio::ip::tcp, asio::any_io_executor, WriteTurns> stream_;
  boost::beast::flat_buffer buffer_;
  asio::steady_timer wake_;  // cancelled when an answer has news
  std::string address_;      // of the client, or of a proxy
  std::unique_ptr<ConnectionTable::Place> place_;
  bool idle_ = false, closing_ = false;
  // Of the request under way:
  std::string share_;                                 // RequestPlan
  HttpResponse::Headers answer_headers_;              // likewise
  std::chrono::steady_clock::time_point body_begin_;  // when its body was awaited
  unsigned version_ = 11;
  bool keep_alive_ = false, head_only_ = false;
  std::string id_;
};

}  // namespace coppice::server
