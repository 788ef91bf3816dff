#include "server/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "core/check.h"
#include "server/http_session.h"

namespace coppice::server {
namespace {

namespace beast = boost::beast;
using asio::ip::tcp;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpServerOptions& options, Handler handler, PlanUpload plan_upload)
      : shared_(options, std::move(handler), std::move(plan_upload)), acceptor_(shared_.io), retry_(shared_.io) {}
  ~BeastServer() override { shared_.handlers.join(); }

  Status Listen() {
    beast::error_code error;
    const auto address = asio::ip::make_address(shared_.options.host, error);
    if (error) return InvalidArgument(fmt::format("host is {}, expected an address such as 127.0.0.1 or ::", shared_.options.host));
    const tcp::endpoint endpoint(address, shared_.options.port);
    const auto failed = [&] {
      return Unavailable(
          fmt::format("cannot listen on {} port {}: {}", shared_.options.host, shared_.options.port, error.message()));
    };
    if (acceptor_.open(endpoint.protocol(), error); error) return failed();
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (acceptor_.bind(endpoint, error); error) return failed();
    if (acceptor_.listen(asio::socket_base::max_listen_connections, error); error) return failed();
    port_ = acceptor_.local_endpoint(error).port();
    return OkStatus();
  }

  uint16_t port() const override { return port_; }
  int32_t num_connections() const override { return shared_.num_connections; }

  void Run() override {
    asio::co_spawn(shared_.io, Accept(), asio::detached);
    shared_.io.run();
  }
  void Drain() override {
    asio::post(shared_.io, [this] {
      shared_.draining = true;
      beast::error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
      for (HttpSession* session : shared_.sessions) session->CloseIfIdle();
    });
  }
  void Stop() override {
    Drain();
    asio::post(shared_.io, [this] {
      for (HttpSession* session : shared_.sessions) session->Close();
    });
  }

 private:
  asio::awaitable<void> Accept() {
    while (!shared_.draining) {
      tcp::socket socket(shared_.io);
      auto [error] = co_await acceptor_.async_accept(socket, kAwait);
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) break;
      if (error) {  // out of descriptors, mostly: those at work end some time
        spdlog::warn("cannot accept a connection: {}", error.message());
        retry_.expires_after(std::chrono::milliseconds(100));
        co_await retry_.async_wait(kAwait);
        continue;
      }
      if (shared_.num_connections >= shared_.options.max_connections) continue;  // closes it
      beast::error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      auto session = std::make_shared<HttpSession>(&shared_, std::move(socket));
      asio::co_spawn(shared_.io, HttpSession::Run(std::move(session)), asio::detached);
    }
  }

  HttpSessions shared_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Create(const HttpServerOptions& options, Handler handler, PlanUpload plan_upload) {
  auto server = std::make_unique<BeastServer>(options, std::move(handler), std::move(plan_upload));
  COPPICE_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace coppice::server
