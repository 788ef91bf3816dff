// A server over real connections and an engine with a fake model: its times, which no client can make short, and how it ends.
#include "server/serving.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "core/file.h"
#include "engine/engine_harness.h"
#include "server/kept_response.h"

namespace coppice::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const timeval wait = {.tv_sec = 60};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  void Send(const std::string& bytes) const {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  void Post(const std::string& body) const {
    Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  // What comes until `end` is in it, or until the connection ends.
  std::string Read(const std::string& end = {}) const {
    std::string received;
    while (end.empty() || received.find(end) == received.npos) {
      char buffer[4096];
      const ssize_t size = recv(socket_.get(), buffer, sizeof(buffer), 0);
      if (size <= 0) break;
      received.append(buffer, static_cast<size_t>(size));
    }
    return received;
  }

 private:
  FileDescriptor socket_;
};

class ServingTest : public ::testing::Test {
 protected:
  ~ServingTest() override { End(); }

  // `steps`: somebody steps the engine.
  void Start(HttpServerOptions options, bool steps = true) {
    options.port = 0;
    http_ = HttpServer::Create(options, [&](HttpRequest request, std::shared_ptr<Responder> responder) {
              service_.Handle(std::move(request), std::move(responder));
            }).value();
    thread_ = std::thread([this, steps] {
      if (!steps) return http_->Run();
      ended_ = Serve(&harness_.engine(), &service_, http_.get(), {.interrupted = [this] { return interrupted_.load(); }});
    });
  }
  void End() {
    if (!thread_.joinable()) return;
    interrupted_ = true;
    http_->Drain();
    thread_.join();
  }
  Client Connect(int receive_buffer = 0) const { return Client(http_->port(), receive_buffer); }

  // A server whose first step finds no device, and what a client hears who asked for it; then it has ended.
  std::string AnswerWithoutADevice(const std::string& body) {
    harness_.model().FailNext(Unavailable("the device is lost"));
    Start({});
    const Client idle = Connect(), waiting = Connect();
    waiting.Post(body);
    std::string answer = waiting.Read();
    EXPECT_EQ(idle.Read(), "");
    thread_.join();
    EXPECT_EQ(ended_.code(), StatusCode::kUnavailable) << ended_.message();
    return answer;
  }

  static constexpr const char* kShort = R"({"prompt": [1, 2], "max_tokens": 3, "ignore_eos": true, "stream": true})";

  EngineHarness harness_{
      {.model = {.max_position = 64}, .max_running = 4, .max_waiting = 8, .texts = Letters(64), .event_thread = true}};
  Service service_{&harness_.engine(), {.model = "fake", .version = "1", .max_context = 64}};
  std::unique_ptr<HttpServer> http_;
  std::atomic<bool> interrupted_{false};
  Status ended_ = Internal("it has not ended");
  std::thread thread_;
};

// A GET is answered on the thread of all connections but those that begin by watching the server.
TEST(HttpServerTest, WhoWatchesTheServerWaitsForNoRequest) {
  std::promise<void> entered, released;
  const auto server = HttpServer::Create({.port = 0}, [&](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
                        if (request.path == "/slow") {
                          entered.set_value();
                          released.get_future().wait();
                        }
                        responder->Send({.body = "answer of " + request.path});
                      }).value();
  std::thread thread([&] { server->Run(); });
  const auto ask = [](const Client& client, const std::string& path) {
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  };
  const Client slow(server->port()), probe(server->port());
  ask(slow, "/slow");
  entered.get_future().wait();
  for (const std::string path : {"/health", "/ready", "/version", "/else"}) {  // the connection stays where it began
    ask(probe, path);
    EXPECT_THAT(probe.Read("answer of " + path), StartsWith("HTTP/1.1 200 OK"));
  }
  EXPECT_EQ(server->num_connections(), 2);
  released.set_value();
  EXPECT_THAT(slow.Read("answer of /slow"), StartsWith("HTTP/1.1 200 OK"));
  server->Drain();
  thread.join();
}

TEST_F(ServingTest, ASilentStreamCarriesComments) {
  Start({.heartbeat = milliseconds(20)}, /*steps=*/false);
  const Client client = Connect();
  client.Post(kShort);
  const std::string waiting = client.Read(": waiting\n\n\r\n");
  EXPECT_THAT(waiting, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(waiting, HasSubstr(": waiting\n\n"));
  EXPECT_THAT(waiting, Not(HasSubstr("data:")));
  std::jthread stepping([this](const std::stop_token& stop) { (void)harness_.engine().Run(stop); });
  EXPECT_THAT(client.Read("[DONE]"), HasSubstr("data: [DONE]"));
}

TEST_F(ServingTest, ConnectionsWithoutARequestEnd) {
  Start({.idle_timeout = milliseconds(30)});
  EXPECT_EQ(Connect().Read(), "");
  const Client client = Connect();
  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.Read(), HasSubstr(R"({"status":"ok"})"));
}

TEST_F(ServingTest, RequestsThatDoNotComeInTimeEnd) {
  Start({.read_timeout = milliseconds(100)});
  const Client head = Connect(), body = Connect();
  head.Send("GET /health HTTP/1.1\r\nHo");
  body.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(head.Read(), "");
  EXPECT_EQ(body.Read(), "");
}

TEST_F(ServingTest, AClientThatDoesNotReadIsDropped) {
  Start({.write_timeout = milliseconds(100)});
  // More than the socket's buffers hold: each answer is the document of the API, which is asked for again and again.
  const Client client = Connect(/*receive_buffer=*/4096);
  const std::string ask = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (int i = 0; i < 200; ++i) client.Send(ask);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (http_->num_connections() > 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(http_->num_connections(), 0);
}

// In chunks, as its length is not known; by HTTP/1.0 until the connection ends.
TEST_F(ServingTest, ALargeAnswerComesInPieces) {
  Start({});
  std::string prompt = "[1";
  for (int i = 0; i < 59; ++i) prompt += ",1";
  const std::string body =
      R"({"max_tokens": 1, "n": 12, "temperature": 0, "echo": true, "logprobs": 20, "prompt": )" + prompt + "]}";
  const Client modern = Connect(), old = Connect();
  modern.Post(body);
  const std::string chunked = modern.Read("\r\n0\r\n\r\n");
  EXPECT_THAT(chunked, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(chunked, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_GT(chunked.size(), kTextPiece);
  modern.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");  // the connection goes on
  EXPECT_THAT(modern.Read("ok\"}"), StartsWith("HTTP/1.1 200"));
  old.Send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body);
  const std::string whole = old.Read();
  EXPECT_THAT(whole, StartsWith("HTTP/1.0 200"));
  EXPECT_THAT(whole, Not(HasSubstr("chunked")));
  const nlohmann::json answer = nlohmann::json::parse(whole.substr(whole.find("\r\n\r\n") + 4));
  EXPECT_EQ(answer["choices"].size(), 12u);
}

TEST_F(ServingTest, AnswersThatNobodyReadsGiveWay) {
  Start({.max_unwritten_bytes = 1 << 20});
  std::vector<std::unique_ptr<Client>> slow;
  const std::string ask = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (int i = 0; i < 60; ++i) {
    slow.push_back(std::make_unique<Client>(http_->port(), /*receive_buffer=*/4096));
    for (int j = 0; j < 100; ++j) slow.back()->Send(ask);  // more than the sockets hold
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (http_->num_connections() > 20 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_LE(http_->num_connections(), 20);  // each that is left holds one document of 60 KB
  const Client prompt = Connect();
  prompt.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(prompt.Read("ok\"}"), StartsWith("HTTP/1.1 200"));
}

TEST_F(ServingTest, AnInterruptionEndsItWithoutAnError) {
  Start({});
  const Client client = Connect();
  client.Post(kShort);
  EXPECT_THAT(client.Read("[DONE]"), HasSubstr("data: [DONE]"));
  End();
  EXPECT_TRUE(ended_.ok()) << ended_.message();
}

TEST_F(ServingTest, ALostDeviceIsToldToWhoWaits) {
  const std::string answer = AnswerWithoutADevice(R"({"prompt": [1, 2], "max_tokens": 3})");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("the device is lost"));
}

TEST_F(ServingTest, ALostDeviceIsToldInAStreamThatHasBegun) {
  const std::string answer = AnswerWithoutADevice(kShort);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("the device is lost"));
  EXPECT_THAT(answer, Not(HasSubstr("[DONE]")));
}

TEST_F(ServingTest, WithoutADeviceTheServerIsNotReady) {
  (void)AnswerWithoutADevice(kShort);
  for (const HttpRequest& request :
       {HttpRequest{.method = "GET", .path = "/ready"},
        HttpRequest{
            .method = "POST", .path = "/v1/completions", .body = R"({"prompt": [1]})", .content_type = "application/json"}}) {
    const auto answer = std::make_shared<KeptResponse>();
    service_.Handle(request, answer);
    ASSERT_TRUE(answer->response);
    EXPECT_EQ(answer->response->status, 503);
    EXPECT_THAT(answer->response->body, HasSubstr("device"));
  }
}

}  // namespace
}  // namespace coppice::server
