#include "server/http_server.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <chrono>
#include <exception>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>

#include "core/check.h"
#include "core/exhaustion.h"
#include "server/http_session.h"

namespace coppice::server {
namespace {

namespace beast = boost::beast;
using asio::ip::tcp;
using namespace asio::experimental::awaitable_operators;  // NOLINT(build/namespaces): || of awaitables

// How a connection begins that watches the server. It is served by the thread that accepts, which has little else to do: behind a
// thousand streams it would wait for each that has news.
constexpr std::array<std::string_view, 3> kProbes = {"GET /health ", "GET /ready ", "GET /version "};
constexpr auto kProbeWait = std::chrono::seconds(1);  // a connection that is silent for so long is none

// Bytes of an answer that the system takes for a client before it has sent them. By default it takes megabytes, and copies them on
// the thread that serves all the others.
constexpr int kUnsentBytes = 128 << 10;

// Where the system refuses, a connection is served all the same.
void PrepareConnection(tcp::socket* socket) {
  beast::error_code ignored;
  socket->set_option(tcp::no_delay(true), ignored);
  setsockopt(socket->native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);
}

bool IsProbe(tcp::socket& socket) {
  std::array<char, 16> begin;
  const ssize_t bytes = recv(socket.native_handle(), begin.data(), begin.size(), MSG_PEEK | MSG_DONTWAIT);
  const std::string_view text(begin.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return std::ranges::any_of(kProbes, [&](std::string_view probe) { return text.starts_with(probe); });
}

// A connection that was accepted, and of which no byte has come.
class SilentSocket {
 public:
  using Set = std::unordered_set<tcp::socket*>;
  SilentSocket(tcp::socket* socket, Set* all) : socket_(socket), all_(*all) { all_.insert(socket_); }
  SilentSocket(const SilentSocket&) = delete;
  SilentSocket& operator=(const SilentSocket&) = delete;
  ~SilentSocket() { all_.erase(socket_); }

 private:
  tcp::socket* const socket_;
  Set& all_;
};

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpServerOptions& options, Planner planner) : shared_(options, std::move(planner)) {}
  ~BeastServer() override {
    shared_.handlers.Join();
    shared_.writers.Join();
  }

  Status Listen() {
    beast::error_code error;
    const auto address = asio::ip::make_address(shared_.options.host, error);
    if (error) return InvalidArgument(fmt::format("host is {}, expected an address such as 127.0.0.1 or ::", shared_.options.host));
    const tcp::endpoint endpoint(address, shared_.options.port);
    const auto failed = [&] {
      return Unavailable(fmt::format("cannot listen on {} port {}: {}{}", shared_.options.host, shared_.options.port,
                                     error.message(),
                                     error == asio::error::address_in_use
                                         ? "; end the program that listens there, or give another --port (0: one that is free)"
                                         : ""));
    };
    if (acceptor_.open(endpoint.protocol(), error); error) return failed();
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (acceptor_.bind(endpoint, error); error) return failed();
    if (acceptor_.listen(asio::socket_base::max_listen_connections, error); error) return failed();
    port_ = acceptor_.local_endpoint(error).port();
    return OkStatus();
  }

  uint16_t port() const override { return port_; }
  int32_t num_connections() const override { return shared_.connections.size() + shared_.probes.size(); }

  void Run() override {
    // Until the last connection has been handed over.
    std::jthread accepting([this, more = asio::make_work_guard(requests_.io)] {
      RunThrough([this] {
        if (!std::exchange(accepts_, true)) {
          asio::co_spawn(probes_.io, Accept(), [this](const std::exception_ptr& thrown) {
            accepts_ = !thrown;
            if (thrown) std::rethrow_exception(thrown);
          });
        }
        probes_.io.run();
      });
    });
    RunThrough([this] { requests_.io.run(); });
  }
  void Drain() override {
    asio::post(probes_.io, [this] {
      beast::error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
      for (tcp::socket* socket : silent_) socket->cancel(ignored);
      DrainSessions(&probes_);
    });
    asio::post(requests_.io, [this] { DrainSessions(&requests_); });
  }
  void Stop() override {
    Drain();
    for (HttpSessions* sessions : {&probes_, &requests_}) {
      asio::post(sessions->io, [sessions] {
        for (HttpSession* session : sessions->sessions) session->Close();
      });
    }
  }

 private:
  // Does `work` until it is done: where the system refuses memory, one connection, whose coroutine has ended, is lost.
  template <class Work>
  static void RunThrough(const Work& work) {
    const MemoryPatience patience(kPatience);
    const auto run = [&] {
      work();
      return OkStatus();
    };
    for (Status status; !(status = CatchExhaustion("serving a connection", run)).ok();) {
      spdlog::error("{}", status.message());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  static void DrainSessions(HttpSessions* sessions) {
    sessions->draining = true;
    for (HttpSession* session : sessions->sessions) session->CloseIfIdle();
  }

  using Place = std::unique_ptr<ConnectionTable::Place>;

  // On the thread of `sessions`.
  static void Start(HttpSessions* sessions, tcp::socket socket, Place place) {
    auto session = std::make_shared<HttpSession>(sessions, std::move(socket), std::move(place));
    asio::co_spawn(sessions->io, HttpSession::Run(std::move(session)), asio::detached);
  }

  // On the thread of `requests_`, whose the connection `handle` becomes.
  void StartMoved(const tcp& protocol, tcp::socket::native_handle_type handle, Place place) {
    tcp::socket moved(requests_.io);
    beast::error_code refused;
    moved.assign(protocol, handle, refused);
    if (!refused) return Start(&requests_, std::move(moved), std::move(place));
    spdlog::warn("cannot serve a connection: {}", refused.message());  // the system watches no more descriptors
    close(handle);
  }

  asio::awaitable<void> Accept() {
    while (!probes_.draining) {
      tcp::socket socket(probes_.io);
      auto [error] = co_await acceptor_.async_accept(socket, kAwait);
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) break;
      if (error) {  // out of descriptors, mostly: those at work end some time
        spdlog::warn("cannot accept a connection: {}", error.message());
        retry_.expires_after(std::chrono::milliseconds(100));
        co_await retry_.async_wait(kAwait);
        continue;
      }
      beast::error_code failed;
      const std::string address = socket.remote_endpoint(failed).address().to_string();
      if (failed) continue;  // it has gone
      Place place = shared_.connections.Enter(PeerOf(address), shared_.options.trusted_proxies.Contains(address));
      const bool may_only_watch = !place;
      if (may_only_watch) place = shared_.probes.Enter(PeerOf(address), /*is_proxy=*/false);
      if (!place) continue;  // closes it
      PrepareConnection(&socket);
      asio::co_spawn(probes_.io, Route(std::move(socket), std::move(place), may_only_watch), asio::detached);
    }
  }

  // Begins the session on the thread that its first bytes ask for.
  asio::awaitable<void> Route(tcp::socket socket, Place place, bool may_only_watch) {
    bool lost_place = false;
    {
      const SilentSocket silent(&socket, &silent_);
      asio::steady_timer late(probes_.io, kProbeWait);
      place->CloseBy([&] {  // on this thread, which alone gives places
        lost_place = true;
        beast::error_code ignored;
        socket.cancel(ignored);
      });
      place->WaitsForClient();
      co_await (socket.async_wait(tcp::socket::wait_read, kAwait) || late.async_wait(kAwait));
      place->CloseBy({});
    }
    if (lost_place) co_return;
    if (IsProbe(socket)) {
      Start(&probes_, std::move(socket), std::move(place));
      co_return;
    }
    if (may_only_watch) co_return;
    beast::error_code error;
    const tcp protocol = socket.local_endpoint(error).protocol();
    if (error) co_return;
    const tcp::socket::native_handle_type handle = socket.release(error);
    if (error) co_return;
    try {
      asio::post(requests_.io,
                 [this, protocol, handle, place = std::move(place)]() mutable { StartMoved(protocol, handle, std::move(place)); });
    } catch (...) {
      close(handle);
      throw;
    }
  }

  HttpShared shared_;
  HttpSessions probes_{&shared_}, requests_{&shared_};
  SilentSocket::Set silent_;  // of the thread of `probes_`, as are:
  tcp::acceptor acceptor_{probes_.io};
  asio::steady_timer retry_{probes_.io};
  bool accepts_ = false;  // or has ended since the server drains
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Create(const HttpServerOptions& options, Planner planner) {
  auto server = std::make_unique<BeastServer>(options, std::move(planner));
  COPPICE_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace coppice::server
