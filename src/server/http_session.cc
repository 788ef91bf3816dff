#include "server/http_session.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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
#include "server/body_decoder.h"
#include "server/errors.h"

namespace coppice::server {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using namespace asio::experimental::awaitable_operators;  // NOLINT(build/namespaces): || of awaitables

// Of what a client sends ahead, beside the largest header: bytes of bodies and requests of a pipeline.
constexpr size_t kReadAhead = size_t{64} << 10;

constexpr auto kWatchSender = std::chrono::seconds(1);  // between two looks whether a client whose next request is there has left

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

// Does `work` for a share, which may wait for a disk or take its time, on one of `threads`, and throws what it throws. Is not
// cancelled.
template <class Work>
asio::awaitable<void> OnThreads(HttpSessions* sessions, FairThreads* threads, const std::string& share, Work work) {
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void(std::exception_ptr)>(
      [&](auto handler) {
        auto kept = std::make_shared<decltype(handler)>(std::move(handler));  // it cannot be copied
        threads->Post(share, 0, [&work, io = asio::make_work_guard(sessions->io), kept]() mutable {
          std::exception_ptr thrown;
          try {
            work();
          } catch (...) {
            thrown = std::current_exception();
          }
          const MemoryPatience patience(kPatience);
          asio::post(io.get_executor(), [kept = std::move(kept), thrown] { (*kept)(thrown); });
        });
      },
      asio::use_awaitable);
}

// Whether the client may send more: it has not closed its side, as the system knows before all bytes are read. True where the
// system does not say.
bool SendsMore(tcp::socket& socket) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  return getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state == TCP_ESTABLISHED;
}

// An exception of a handler costs its request, not the server: `answer` reports to a client that goes without one.
void Handle(HttpSession::Incoming incoming, std::shared_ptr<Responder> answer) {
  const MemoryPatience none(std::chrono::seconds(0));
  try {
    incoming.plan.handle(std::move(incoming.request), std::move(answer));
  } catch (const std::exception& error) {
    spdlog::error("a request got no answer: {}", error.what());
  }
}

// Headers of all answers.
template <class Message>
void SetCommon(std::string_view id, bool keep_alive, const HttpResponse::Headers& headers, Message* message) {
  message->set(http::field::date, HttpDate());
  message->set("x-request-id", id);
  for (const auto& [name, value] : headers) message->set(name, value);
  message->keep_alive(keep_alive);
}

}  // namespace

HttpSession::HttpSession(HttpSessions* sessions, tcp::socket socket, std::unique_ptr<ConnectionTable::Place> place)
    : sessions_(*sessions),
      shared_(*sessions->shared),
      stream_(std::move(socket)),
      buffer_(shared_.options.max_header_bytes + kReadAhead),
      wake_(sessions->io),
      place_(std::move(place)) {
  beast::error_code ignored;
  if (const tcp::endpoint peer = stream_.socket().remote_endpoint(ignored); !ignored) address_ = peer.address().to_string();
  sessions_.sessions.insert(this);
}

HttpSession::~HttpSession() { sessions_.sessions.erase(this); }

asio::awaitable<void> HttpSession::Run(std::shared_ptr<HttpSession> self) {
  self->place_->CloseBy([weak = std::weak_ptr(self), &io = self->sessions_.io] {
    asio::post(io, [weak] {
      if (const std::shared_ptr<HttpSession> session = weak.lock()) session->Close();
    });
  });
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
  Incoming incoming;
  const Read read = co_await ReadRequest(&incoming);
  if (read != Read::kRequest) co_return read == Read::kRefused;
  keep_alive_ = keep_alive_ && !sessions_.draining;
  place_->WorksForClient();

  const auto responder = std::make_shared<SessionResponder>(
      [weak = weak_from_this(), &io = sessions_.io](bool cut) {
        asio::post(io, [weak, cut] {
          if (const std::shared_ptr<HttpSession> self = weak.lock()) self->Wake(cut);
        });
      },
      shared_.options.max_behind_bytes, shared_.unwritten);
  responder->SetOwner(share_);
  std::shared_ptr<Responder> answer = WithFallback(responder);
  if (incoming.plan.takes_time) {
    const int64_t bytes = incoming.held->bytes();
    shared_.handlers.Post(share_, bytes, [incoming = std::move(incoming), answer = std::move(answer)]() mutable {
      Handle(std::move(incoming), std::move(answer));
    });
  } else {
    Handle(std::move(incoming), std::move(answer));
  }
  const std::variant<bool, std::monostate> ended = co_await (WriteAnswer(responder) || UntilGone());
  const bool written = ended.index() == 0 && std::get<0>(ended);
  responder->Close(/*gone=*/!written);
  if (responder->was_cut()) spdlog::warn("{}: the client is too far behind its answer, which ends", id_);
  if (!written) co_return false;
  co_return keep_alive_ && !closing_;
}

asio::awaitable<HttpSession::Read> HttpSession::ReadRequest(Incoming* incoming) {
  HttpRequestParser parser(shared_.options.max_header_bytes);
  if (!co_await ReadHead(&parser)) co_return Read::kEnd;
  HttpRequest& request = incoming->request;
  RequestPlan& plan = incoming->plan;
  request = TakeHead(parser);
  plan = shared_.planner(request);
  answer_headers_ = std::move(plan.answer_headers);
  if (plan.refusal) {
    if (parser.body_bytes() != 0) {
      co_await Refuse(*std::move(plan.refusal));
      co_return Read::kEnd;
    }
    const bool written = co_await WriteWhole(*plan.refusal, /*responder=*/nullptr);
    co_return (written && keep_alive_ && !closing_) ? Read::kRefused : Read::kEnd;
  }
  const size_t most = plan.max_body_bytes ? static_cast<size_t>(*plan.max_body_bytes) : shared_.options.max_body_bytes;
  parser.AcceptBody(most);
  if (parser.state() == HttpRequestParser::State::kRefused) {
    co_await Refuse(parser.refusal());
    co_return Read::kEnd;
  }
  share_ = plan.share;
  const bool in_file = !plan.body_folder.empty();
  incoming->held = std::make_shared<ByteBudget::Held>(in_file ? &shared_.upload_bytes : &shared_.body_bytes, share_);
  bool complete = false;
  if (in_file) {
    complete = co_await ReadUpload(&parser, plan.body_folder, incoming->held.get(), &request);
  } else if (plan.is_gzip) {
    complete = co_await ReadGzip(&parser, most, incoming->held.get(), &request);
  } else {
    complete = co_await ReadBody(&parser, incoming->held.get(), &request);
  }
  co_return complete ? Read::kRequest : Read::kEnd;
}

asio::awaitable<bool> HttpSession::ReadHead(HttpRequestParser* parser) {
  place_->WaitsForClient();
  if (buffer_.size() == 0) {  // wait without a limit on the whole request
    if (sessions_.draining || closing_) co_return false;
    idle_ = true;
    stream_.expires_after(shared_.options.idle_timeout);
    auto [error, size] = co_await stream_.async_read_some(buffer_.prepare(kFirstRead), kAwait);
    idle_ = false;
    if (error) co_return false;
    buffer_.commit(size);
  }
  id_ = RandomHex(16);
  answer_headers_.clear();
  keep_alive_ = head_only_ = false;
  version_ = 11;
  stream_.expires_after(shared_.options.head_timeout);
  for (Feed(parser); parser->state() == HttpRequestParser::State::kHead; Feed(parser)) {
    if (!co_await Receive(kFirstRead)) co_return false;
  }
  if (parser->state() == HttpRequestParser::State::kRefused) co_return co_await Refuse(parser->refusal());
  co_return true;
}

HttpRequest HttpSession::TakeHead(const HttpRequestParser& parser) {
  HttpRequest request = parser.Head();
  request.id = id_;
  request.peer = shared_.options.trusted_proxies.ClientOf(address_, request.forwarded_for);
  version_ = parser.version();
  keep_alive_ = parser.keep_alive() && !sessions_.draining && !closing_;
  head_only_ = request.method == "HEAD";
  if (head_only_) request.method = "GET";  // answered alike, without the body
  return request;
}

void HttpSession::Feed(HttpRequestParser* parser) {
  const asio::const_buffer come = buffer_.data();
  buffer_.consume(parser->Put({static_cast<const char*>(come.data()), come.size()}));
}

asio::awaitable<bool> HttpSession::Receive(size_t most) {
  // The parser leaves less than the largest head, and the buffer holds more.
  auto [error, size] =
      co_await stream_.async_read_some(buffer_.prepare(std::min(most, buffer_.max_size() - buffer_.size())), kAwait);
  if (error) co_return false;  // a client that ends in the middle, or sends so slowly, gets no answer
  buffer_.commit(size);
  place_->WaitsForClient();
  co_return true;
}

asio::awaitable<bool> HttpSession::AdvanceBody(HttpRequestParser* parser, int64_t taken, ByteBudget::Held* held) {
  Feed(parser);
  if (parser->state() == HttpRequestParser::State::kRefused) co_return co_await Refuse(parser->refusal());
  const int64_t came = taken + std::ssize(parser->body());
  const bool has_room = co_await Hold(held, came);
  if (!has_room || parser->state() != HttpRequestParser::State::kBody) co_return has_room;
  const HttpServerOptions& options = shared_.options;
  stream_.expires_at(body_begin_ + options.body_timeout + std::chrono::milliseconds(came * 1000 / options.min_body_rate));
  co_return co_await Receive(kBodyRead);
}

asio::awaitable<bool> HttpSession::Hold(ByteBudget::Held* held, int64_t bytes) {
  switch (held->GrowTo(bytes)) {
    case BytesTaken::kTaken: break;
    case BytesTaken::kShareIsFull:
      co_return co_await Refuse(429,
                                "requests of this client hold as much room as the server has for one; send this one again when "
                                "others have been answered");
    case BytesTaken::kAllIsFull:
      co_return co_await Refuse(503, "the server is reading too many large requests; send this one again later");
  }
  co_return true;
}

asio::awaitable<bool> HttpSession::ReadBody(HttpRequestParser* parser, ByteBudget::Held* held, HttpRequest* request) {
  bool goes_on = co_await Continue(*parser);
  while (goes_on && parser->state() == HttpRequestParser::State::kBody) {
    goes_on = co_await AdvanceBody(parser, /*taken=*/0, held);
  }
  if (goes_on) request->body = std::move(parser->body());
  co_return goes_on;
}

asio::awaitable<bool> HttpSession::ReadGzip(HttpRequestParser* parser, size_t max_bytes, ByteBudget::Held* held,
                                            HttpRequest* request) {
  BodyDecoder decoder;
  bool goes_on = co_await Continue(*parser);
  while (goes_on && parser->state() == HttpRequestParser::State::kBody) {
    const int64_t taken = std::ssize(request->body);
    goes_on = co_await AdvanceBody(parser, taken, held);
    if (!goes_on) break;
    const Status decoded = decoder.Put(parser->body(), max_bytes, &request->body);
    parser->body().clear();
    if (decoded.code() == StatusCode::kOutOfRange) co_return co_await Refuse(413, decoded.message());
    if (!decoded.ok()) co_return co_await Refuse(400, decoded.message());
    const int64_t came = std::ssize(request->body);
    goes_on = co_await Hold(held, came);
  }
  if (goes_on && !decoder.done())
    co_return co_await Refuse(400, "Content-Encoding is gzip, and the body ends before the gzip does");
  co_return goes_on;
}

asio::awaitable<bool> HttpSession::ReadUpload(HttpRequestParser* parser, const std::string& folder, ByteBudget::Held* held,
                                              HttpRequest* request) {
  using State = HttpRequestParser::State;
  Result<FileDescriptor> file = TemporaryFile(folder);
  if (!file.ok()) co_return co_await Refuse(ErrorResponse(DiskProblem(file.status())));
  if (!co_await Continue(*parser)) co_return false;
  const auto body = std::make_shared<BodyFile>(BodyFile{.file = *std::move(file)});
  std::string piece;
  Status written;
  while (parser->state() == State::kBody) {
    bool goes_on = true;
    while (goes_on && parser->state() == State::kBody && parser->body().size() < kFilePiece) {
      goes_on = co_await AdvanceBody(parser, body->size, held);
    }
    if (!goes_on) co_return false;
    piece.swap(parser->body());
    co_await OnThreads(&sessions_, &shared_.handlers, share_, [&] { written = WriteAll(body->file.get(), piece, folder); });
    if (!written.ok()) co_return co_await Refuse(ErrorResponse(DiskProblem(written)));
    body->size += std::ssize(piece);
    piece.clear();
  }
  request->body_file = body;
  co_return true;
}

asio::awaitable<bool> HttpSession::Continue(const HttpRequestParser& parser) {
  body_begin_ = std::chrono::steady_clock::now();
  if (!parser.waits_for_continue()) co_return true;
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  auto [failed, written] = co_await asio::async_write(stream_, asio::buffer(kContinue), kAwait);
  co_return !failed;
}

asio::awaitable<bool> HttpSession::Refuse(int status, std::string_view message) {
  co_return co_await Refuse(ErrorResponse(status, message));
}

// Bytes that follow need not begin a request: the connection ends.
asio::awaitable<bool> HttpSession::Refuse(HttpResponse response) {
  keep_alive_ = head_only_ = false;
  version_ = 11;
  co_await WriteWhole(response, /*responder=*/nullptr);
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  // Bytes that the client is still sending are read for a moment: a reset would take the answer from it.
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
    // So it may be when what was waited for had come just before: nothing would cancel the next wait.
    if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none) break;
    char byte;
    const ssize_t size = recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) co_return;
    if (size < 0) continue;
    // The next request is there, and hides the end of what its sender sends.
    asio::steady_timer later(sessions_.io);
    do {
      later.expires_after(kWatchSender);
      auto [stopped] = co_await later.async_wait(kAwait);
      if (stopped || (co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none) co_return;
    } while (SendsMore(stream_.socket()));
    co_return;
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
  place_->WaitsForClient();
  if (response.source) {
    if (!co_await WriteHead(response.content_type, response.headers)) co_return false;
    if (head_only_) co_return true;
    if (!co_await WriteSource(response.source.get(), responder)) co_return false;
    co_return co_await WriteLast();
  }
  http::response<http::span_body<const char>> message(static_cast<http::status>(response.status), version_);
  SetCommon(id_, keep_alive_, answer_headers_, &message);
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
    co_await OnThreads(&sessions_, &shared_.writers, share_, [&] { size = pread(file.file.get(), piece.data(), wanted, offset); });
    if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none) co_return false;
    if (size <= 0) co_return false;  // what was promised cannot be had: the client sees the connection end before the file
    stream_.expires_after(shared_.options.write_timeout);
    auto [error, written] = co_await asio::async_write(stream_, asio::buffer(piece.data(), static_cast<size_t>(size)), kAwait);
    if (error) co_return false;
    place_->WaitsForClient();
    offset += size;
  }
  co_return true;
}

asio::awaitable<bool> HttpSession::WriteSource(TextSource* source, SessionResponder* responder) {
  std::string piece;
  Status made;
  for (bool more = true; more;) {
    piece.clear();
    co_await OnThreads(&sessions_, &shared_.writers, share_, [&] {
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
    place_->WaitsForClient();
  }
  co_return true;
}

asio::awaitable<bool> HttpSession::WriteHead(std::string_view content_type, const HttpResponse::Headers& headers) {
  http::response<http::empty_body> head(http::status::ok, version_);
  if (version_ < 11) keep_alive_ = false;  // its end is the connection's
  SetCommon(id_, keep_alive_, answer_headers_, &head);
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
