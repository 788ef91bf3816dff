#include "server/http_session.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <optional>
#include <variant>

#include "core/exhaustion.h"
#include "core/random_bytes.h"
#include "server/errors.h"

namespace coppice::server {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using namespace asio::experimental::awaitable_operators;  // NOLINT(build/namespaces): || of awaitables

// Of what a client sends ahead, beside the largest header: bytes of bodies and requests of a pipeline.
constexpr size_t kReadAhead = size_t{64} << 10;

constexpr size_t kFirstRead = 4096;  // most requests are smaller
constexpr size_t kBodyRead = kReadAhead;
constexpr size_t kFilePiece = size_t{256} << 10;  // of a body in a file, read or written at once

const HttpResponse::Headers kStreamHeaders = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};  // for nginx between

// "Mon, 23 Nov 2026 01:26:31 GMT".
std::string HttpDate() { return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr))); }

// A file without a name: it lives as long as it is open.
Result<FileDescriptor> TemporaryFile(const std::string& folder) {
  std::string path = folder + "/.coppice-upload-XXXXXX";
  FileDescriptor file(mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0) return SystemError("make a file in", folder);
  unlink(path.c_str());
  return file;
}

// Does `work`, which may wait for a disk or take its time, on a thread of `pool`, and throws what it throws. Is not cancelled.
template <class Work>
asio::awaitable<void> OnPool(HttpSessions* sessions, asio::thread_pool* pool, Work work) {
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void(std::exception_ptr)>(
      [sessions, pool, &work](auto handler) {
        asio::post(*pool, [&work, io = asio::make_work_guard(sessions->io), handler = std::move(handler)]() mutable {
          std::exception_ptr thrown;
          try {
            work();
          } catch (...) {
            thrown = std::current_exception();
          }
          const MemoryPatience patience(kPatience);
          asio::post(io.get_executor(), [handler = std::move(handler), thrown]() mutable { handler(thrown); });
        });
      },
      asio::use_awaitable);
}

// What a handler throws costs its request, not the server: `answer` tells the client where it goes without one.
void Call(const HttpServer::Handler& handler, HttpRequest request, std::shared_ptr<Responder> answer) {
  const MemoryPatience none(std::chrono::seconds(0));
  try {
    handler(std::move(request), std::move(answer));
  } catch (const std::exception& error) {
    spdlog::error("a request got no answer: {}", error.what());
  }
}

// What all answers carry.
template <class Message>
void SetCommon(std::string_view id, bool keep_alive, Message* message) {
  message->set(http::field::date, HttpDate());
  message->set("x-request-id", id);
  message->keep_alive(keep_alive);
}

}  // namespace

HttpSession::HttpSession(HttpSessions* sessions, tcp::socket socket)
    : sessions_(*sessions),
      shared_(*sessions->shared),
      stream_(std::move(socket)),
      buffer_(shared_.options.max_header_bytes + kReadAhead),
      wake_(sessions->io) {
  sessions_.sessions.insert(this);
  ++shared_.num_connections;
}

HttpSession::~HttpSession() {
  sessions_.sessions.erase(this);
  --shared_.num_connections;
}

asio::awaitable<void> HttpSession::Run(std::shared_ptr<HttpSession> self) {
  while (co_await self->Exchange()) {
  }
  beast::error_code ignored;
  self->stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

void HttpSession::CloseIfIdle() {
  if (idle_) stream_.cancel();
}

void HttpSession::Wake(bool cut) {
  wake_.cancel();
  if (cut) stream_.cancel();
}

void HttpSession::Close() {
  closing_ = true;
  stream_.close();  // whatever is read or written next fails as well
  wake_.cancel();
}

asio::awaitable<bool> HttpSession::Exchange() {
  HttpRequest request;
  BodyBytes body_bytes;
  if (!co_await Read(&request, &body_bytes)) co_return false;
  keep_alive_ = keep_alive_ && !sessions_.draining;

  const auto responder = std::make_shared<SessionResponder>(
      [weak = weak_from_this(), &io = sessions_.io](bool cut) {
        asio::post(io, [weak, cut] {
          if (const std::shared_ptr<HttpSession> self = weak.lock()) self->Wake(cut);
        });
      },
      shared_.options.max_behind_bytes, shared_.unwritten);
  responder->SetOwner(request.peer);
  std::shared_ptr<Responder> answer = WithFallback(responder);
  if (request.method == "POST" || request.method == "PUT" || request.method == "DELETE") {  // they parse, or write files
    asio::post(shared_.handlers,
               [&handler = shared_.handler, request = std::move(request), answer = std::move(answer),
                body_bytes = std::move(body_bytes)]() mutable { Call(handler, std::move(request), std::move(answer)); });
  } else {
    if (head_only_) request.method = "GET";  // answered alike, without the body
    Call(shared_.handler, std::move(request), std::move(answer));
  }
  const std::variant<bool, std::monostate> ended = co_await (WriteAnswer(responder) || UntilGone());
  const bool written = ended.index() == 0 && std::get<0>(ended);
  responder->Close(/*gone=*/!written);
  if (responder->was_cut()) spdlog::warn("{}: the client is too far behind its answer, which ends", id_);
  if (!written) co_return false;
  co_return keep_alive_ && !closing_;
}

asio::awaitable<bool> HttpSession::Read(HttpRequest* request, BodyBytes* body_bytes) {
  using State = HttpRequestParser::State;
  const HttpServerOptions& options = shared_.options;
  HttpRequestParser parser(options.max_header_bytes);
  if (buffer_.size() == 0) {  // wait without a limit on the whole request
    if (sessions_.draining || closing_) co_return false;
    idle_ = true;
    stream_.expires_after(options.idle_timeout);
    auto [error, size] = co_await stream_.async_read_some(buffer_.prepare(kFirstRead), kAwait);
    idle_ = false;
    if (error) co_return false;
    buffer_.commit(size);
  }
  id_ = RandomHex(16);
  keep_alive_ = head_only_ = false;
  version_ = 11;
  stream_.expires_after(options.read_timeout);
  while (parser.state() == State::kHead) {
    if (!co_await Advance(&parser, kFirstRead)) co_return false;
  }
  *request = parser.Head();
  request->id = id_;
  beast::error_code ignored;
  if (const tcp::endpoint peer = stream_.socket().remote_endpoint(ignored); !ignored) request->peer = peer.address().to_string();
  std::optional<UploadPlan> upload = shared_.plan_upload ? shared_.plan_upload(*request) : std::nullopt;
  if (upload && upload->refusal) co_return co_await Refuse(*std::move(upload->refusal));
  parser.AcceptBody(upload ? static_cast<uint64_t>(upload->max_bytes) : uint64_t{options.max_body_bytes});
  if (parser.state() == State::kRefused) co_return co_await Refuse(parser.refusal());
  version_ = parser.version();
  keep_alive_ = parser.keep_alive();
  head_only_ = request->method == "HEAD";
  if (upload) co_return co_await ReadUpload(&parser, *std::move(upload), request, body_bytes);
  co_return co_await ReadBody(&parser, request, body_bytes);
}

asio::awaitable<bool> HttpSession::Advance(HttpRequestParser* parser, size_t most) {
  using State = HttpRequestParser::State;
  const asio::const_buffer come = buffer_.data();
  buffer_.consume(parser->Put({static_cast<const char*>(come.data()), come.size()}));
  if (parser->state() == State::kRefused) co_return co_await Refuse(parser->refusal());
  if (parser->state() != State::kHead && parser->state() != State::kBody) co_return true;
  // The parser leaves less than the largest head, and the buffer holds more.
  auto [error, size] =
      co_await stream_.async_read_some(buffer_.prepare(std::min(most, buffer_.max_size() - buffer_.size())), kAwait);
  if (error) co_return false;  // who ends in the middle, or sends so slowly, gets no answer
  buffer_.commit(size);
  co_return true;
}

asio::awaitable<bool> HttpSession::ReadBody(HttpRequestParser* parser, HttpRequest* request, BodyBytes* body_bytes) {
  const HttpServerOptions& options = shared_.options;
  const auto expected = static_cast<int64_t>(parser->body_bytes().value_or(options.max_body_bytes));
  if (!body_bytes->Take(&shared_.body_bytes, expected, static_cast<int64_t>(options.max_total_body_bytes)))
    co_return co_await Refuse(503, "the server is reading too many large requests; send this one again later");
  parser->ReserveBody();
  if (parser->state() == HttpRequestParser::State::kRefused) co_return co_await Refuse(parser->refusal());
  if (!co_await Continue(*parser)) co_return false;
  while (parser->state() == HttpRequestParser::State::kBody) {
    if (!co_await Advance(parser, kBodyRead)) co_return false;
  }
  request->body = std::move(parser->body());
  body_bytes->ShrinkTo(static_cast<int64_t>(request->body.size()));
  co_return true;
}

asio::awaitable<bool> HttpSession::ReadUpload(HttpRequestParser* parser, UploadPlan plan, HttpRequest* request,
                                              BodyBytes* body_bytes) {
  using State = HttpRequestParser::State;
  const auto expected = static_cast<int64_t>(parser->body_bytes().value_or(static_cast<uint64_t>(plan.max_bytes)));
  if (!body_bytes->Take(&shared_.upload_bytes, expected, shared_.options.max_total_upload_bytes))
    co_return co_await Refuse(503, "the server is reading too many large files; send this one again later");
  Result<FileDescriptor> file = TemporaryFile(plan.folder);
  if (!file.ok()) co_return co_await Refuse(ErrorResponse(DiskProblem(file.status())));
  if (!co_await Continue(*parser)) co_return false;
  const auto body = std::make_shared<BodyFile>(BodyFile{.file = *std::move(file)});
  std::string piece;
  Status written;
  while (parser->state() == State::kBody) {
    stream_.expires_after(shared_.options.read_timeout);
    while (parser->state() == State::kBody && parser->body().size() < kFilePiece) {
      if (!co_await Advance(parser, kBodyRead)) co_return false;
    }
    piece.swap(parser->body());
    co_await OnPool(&sessions_, &shared_.handlers, [&] { written = WriteAll(body->file.get(), piece, plan.folder); });
    if (!written.ok()) co_return co_await Refuse(ErrorResponse(DiskProblem(written)));
    body->size += std::ssize(piece);
    piece.clear();
  }
  body_bytes->ShrinkTo(body->size);
  request->body_file = body;
  co_return true;
}

asio::awaitable<bool> HttpSession::Continue(const HttpRequestParser& parser) {
  if (!parser.waits_for_continue()) co_return true;
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  auto [failed, written] = co_await asio::async_write(stream_, asio::buffer(kContinue), kAwait);
  co_return !failed;
}

asio::awaitable<bool> HttpSession::Refuse(int status, std::string_view message) {
  co_return co_await Refuse(ErrorResponse(status, message));
}

// What follows on the connection is not known to be a request: it ends.
asio::awaitable<bool> HttpSession::Refuse(HttpResponse response) {
  keep_alive_ = head_only_ = false;
  version_ = 11;
  co_await WriteWhole(response, /*responder=*/nullptr);
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  // What the client is still sending is read for a moment: a reset would take the answer from it.
  stream_.expires_after(std::chrono::seconds(1));
  std::string sink(size_t{64} << 10, '\0');
  for (int64_t left = int64_t{64} << 20; left > 0;) {
    auto [error, size] = co_await stream_.async_read_some(asio::buffer(sink), kAwait);
    if (error) break;
    left -= static_cast<int64_t>(size);
  }
  co_return false;
}

asio::awaitable<void> HttpSession::UntilGone() {
  co_await asio::this_coro::throw_if_cancelled(false);
  while (true) {
    auto [error] = co_await stream_.socket().async_wait(tcp::socket::wait_read, kAwait);
    if (error) break;  // the answer is complete, or the session ends
    char byte;
    const ssize_t size = recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) co_return;
    if (size < 0) continue;
    asio::steady_timer never(sessions_.io, asio::steady_timer::time_point::max());  // the next request is there; who sent it stays
    co_await never.async_wait(kAwait);
    break;
  }
}

asio::awaitable<bool> HttpSession::WriteAnswer(std::shared_ptr<SessionResponder> responder) {
  co_await asio::this_coro::throw_if_cancelled(false);
  bool streaming = false;
  stream_.expires_never();
  while (!closing_) {
    SessionResponder::Part part = responder->Take();
    if (part.empty()) {
      wake_.expires_after(shared_.options.heartbeat);
      auto [woken] = co_await wake_.async_wait(kAwait);
      if (closing_) break;
      if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none) break;
      if (!woken && streaming && !co_await WriteText(": waiting\n\n")) co_return false;
      continue;
    }
    if (part.cut) co_return false;
    if (part.whole) co_return co_await WriteWhole(*part.whole, responder.get());
    if (part.begin_stream) {
      streaming = true;
      part.headers.insert(part.headers.end(), kStreamHeaders.begin(), kStreamHeaders.end());
      if (!co_await WriteHead("text/event-stream; charset=utf-8", part.headers)) co_return false;
    }
    if (!part.text.empty() && !co_await WriteText(part.text)) co_return false;
    if (part.source && !co_await WriteSource(part.source.get(), responder.get())) co_return false;
    if (part.end) co_return co_await WriteLast();
  }
  co_return false;
}

asio::awaitable<bool> HttpSession::WriteWhole(const HttpResponse& response, SessionResponder* responder) {
  if (response.source) {
    if (!co_await WriteHead(response.content_type, response.headers)) co_return false;
    if (head_only_) co_return true;
    if (!co_await WriteSource(response.source.get(), responder)) co_return false;
    co_return co_await WriteLast();
  }
  http::response<http::span_body<const char>> message(static_cast<http::status>(response.status), version_);
  SetCommon(id_, keep_alive_, &message);
  message.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.content_length(response.file ? static_cast<uint64_t>(response.file->size) : response.body.size());
  const bool has_text = !head_only_ && !response.file;
  if (has_text) message.body() = {response.body.data(), response.body.size()};
  stream_.expires_after(shared_.options.write_timeout);
  http::response_serializer<http::span_body<const char>> serializer(message);
  if (!has_text) {
    auto [error, size] = co_await http::async_write_header(stream_, serializer, kAwait);
    if (error || head_only_) co_return !error;
    co_return co_await WriteFile(*response.file, responder);
  }
  auto [error, size] = co_await http::async_write(stream_, serializer, kAwait);
  co_return !error;
}

asio::awaitable<bool> HttpSession::WriteFile(const BodyFile& file, SessionResponder* responder) {
  std::string piece(kFilePiece, '\0');
  responder->Hold(piece.size());
  for (int64_t offset = 0; offset < file.size;) {
    ssize_t size = 0;
    const auto wanted = static_cast<size_t>(std::min<int64_t>(std::ssize(piece), file.size - offset));
    co_await OnPool(&sessions_, &shared_.writers, [&] { size = pread(file.file.get(), piece.data(), wanted, offset); });
    if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none) co_return false;
    if (size <= 0) co_return false;  // what was promised cannot be had: the client sees the connection end before the file
    stream_.expires_after(shared_.options.write_timeout);
    auto [error, written] = co_await asio::async_write(stream_, asio::buffer(piece.data(), static_cast<size_t>(size)), kAwait);
    if (error) co_return false;
    offset += size;
  }
  co_return true;
}

asio::awaitable<bool> HttpSession::WriteSource(TextSource* source, SessionResponder* responder) {
  std::string piece;
  Status made;
  for (bool more = true; more;) {
    piece.clear();
    co_await OnPool(&sessions_, &shared_.writers, [&] {
      const MemoryPatience none(std::chrono::seconds(0));
      try {
        made = CatchExhaustion("writing an answer", [&] {
          more = source->Next(&piece);
          return OkStatus();
        });
      } catch (const std::exception& error) {  // a fault of ours: it costs one answer, not the server
        made = Internal(fmt::format("writing an answer failed: {}", error.what()));
      }
    });
    if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none) co_return false;
    if (!made.ok()) {  // the client sees the connection end before the answer
      spdlog::error("{}: {}", id_, made.message());
      co_return false;
    }
    responder->Hold(source->held_bytes() + piece.capacity());
    if (!piece.empty() && !co_await WriteText(piece)) co_return false;
  }
  co_return true;
}

asio::awaitable<bool> HttpSession::WriteHead(std::string_view content_type, const HttpResponse::Headers& headers) {
  http::response<http::empty_body> head(http::status::ok, version_);
  if (version_ < 11) keep_alive_ = false;  // its end is the connection's
  SetCommon(id_, keep_alive_, &head);
  head.set(http::field::content_type, content_type);
  for (const auto& [name, value] : headers) head.set(name, value);
  if (version_ >= 11) head.chunked(true);
  http::response_serializer<http::empty_body> serializer(head);
  stream_.expires_after(shared_.options.write_timeout);
  auto [error, size] = co_await http::async_write_header(stream_, serializer, kAwait);
  co_return !error;
}

asio::awaitable<bool> HttpSession::WriteText(std::string_view text) {
  stream_.expires_after(shared_.options.write_timeout);
  if (version_ < 11) {
    auto [error, size] = co_await asio::async_write(stream_, asio::buffer(text), kAwait);
    co_return !error;
  }
  auto [error, size] = co_await asio::async_write(stream_, http::make_chunk(asio::buffer(text)), kAwait);
  co_return !error;
}

asio::awaitable<bool> HttpSession::WriteLast() {
  if (version_ < 11) co_return true;
  stream_.expires_after(shared_.options.write_timeout);
  auto [error, size] = co_await asio::async_write(stream_, http::make_chunk_last(), kAwait);
  co_return !error;
}

}  // namespace coppice::server
