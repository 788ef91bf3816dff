// A server over real connections and an engine with a fake model: its times, which no client can make short, and how it ends.
#include "server/serving.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/file.h"
#include "engine/testing/engine_harness.h"
#include "server/kept_response.h"
#include "server/testing/gzip.h"

namespace coppice::server {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Client {
 public:
  // From the address 127.0.0.`host`.
  explicit Client(uint16_t port, int receive_buffer = 0, int host = 1) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const timeval wait = {.tv_sec = 60};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + static_cast<uint32_t>(host) - 1);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    address.sin_port = htons(port);
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
  // Bytes that come until `end` is in them, or until the connection ends.
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

  // `steps`: a thread steps the engine.
  void Start(HttpServerOptions options, bool steps = true) {
    options.port = 0;
    http_ = HttpServer::Create(options, [&](HttpRequest head) { return service_.Plan(std::move(head)); }).value();
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

  // A server whose first step finds no device, and the answer to the client that asked for it; then it has ended.
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

// A server without a service: what its requests become is a test's.
class HttpServerTest : public ::testing::Test {
 protected:
  ~HttpServerTest() override {
    server_->Drain();
    thread_.join();
  }
  void Start(HttpServerOptions options, HttpServer::Planner planner) {
    options.port = 0;
    server_ = HttpServer::Create(options, std::move(planner)).value();
    thread_ = std::thread([this] { server_->Run(); });
  }
  // Answers with the path.
  static RequestPlan Echo(const HttpRequest& head) {
    return {.handle = [](const HttpRequest& request,
                         const std::shared_ptr<Responder>& responder) { responder->Send({.body = "answer of " + request.path}); },
            .share = head.peer};
  }
  Client Connect(int host = 1) const { return Client(server_->port(), 0, host); }
  static void Ask(const Client& client, const std::string& path) {
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  // Whether the client has an answer, or none: its connection was closed.
  static bool IsAnswered(const Client& client, const std::string& path) {
    Ask(client, path);
    return client.Read("answer of " + path).starts_with("HTTP/1.1 200 OK");
  }

  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// Requests that take no time are answered on the thread of all connections but those that begin by watching the server.
TEST_F(HttpServerTest, WatchingTheServerWaitsForNoRequest) {
  std::promise<void> entered, released;
  Start({}, [&](const HttpRequest& head) {
    RequestPlan plan = Echo(head);
    if (head.path != "/slow") return plan;
    entered.set_value();
    released.get_future().wait();
    return plan;
  });
  const Client slow = Connect(), probe = Connect();
  Ask(slow, "/slow");
  entered.get_future().wait();
  for (const std::string path : {"/health", "/ready", "/version", "/else"})  // the connection stays where it began
    EXPECT_TRUE(IsAnswered(probe, path)) << path;
  EXPECT_EQ(server_->num_connections(), 2);
  released.set_value();
  EXPECT_THAT(slow.Read("answer of /slow"), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(HttpServerTest, WhatIsRefusedByItsHeadIsNotRead) {
  Start({}, [](const HttpRequest& head) {
    RequestPlan plan = Echo(head);
    if (head.path == "/nowhere") plan.refusal = HttpResponse{.status = 404, .body = "nothing there"};
    return plan;
  });
  const Client announced = Connect(), waiting = Connect(), none = Connect();
  announced.Send("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{");
  EXPECT_THAT(announced.Read(), AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("Connection: close"), HasSubstr("nothing there")));
  waiting.Send("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_THAT(waiting.Read(), StartsWith("HTTP/1.1 404"));
  Ask(none, "/nowhere");
  EXPECT_THAT(none.Read("nothing there"), AllOf(StartsWith("HTTP/1.1 404"), Not(HasSubstr("Connection: close"))));
  EXPECT_TRUE(IsAnswered(none, "/else"));  // without a body the connection goes on
}

TEST_F(HttpServerTest, AFloodOfSilentConnectionsKeepsNoClientOut) {
  Start({.max_connections = 8}, Echo);
  std::deque<Client> flood;
  for (int i = 0; i < 20; ++i) flood.emplace_back(server_->port(), 0, /*host=*/2);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsAnswered(Connect(/*host=*/3), "/else"));
  EXPECT_TRUE(IsAnswered(Connect(/*host=*/2), "/health"));  // from the same address, too
  EXPECT_LE(server_->num_connections(), 8);
  EXPECT_EQ(flood.front().Read(), "");  // it has given its place up
}

TEST_F(HttpServerTest, AFullServerIsStillWatched) {
  std::atomic<int> entered = 0;
  std::promise<void> released;
  std::shared_future<void> end = released.get_future().share();
  Start({.max_connections = 2, .handler_threads = 4}, [&](const HttpRequest& head) {
    RequestPlan plan = Echo(head);
    plan.takes_time = head.path == "/slow";
    if (!plan.takes_time) return plan;
    plan.handle = [&, handle = plan.handle](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
      ++entered;
      end.wait();
      handle(request, responder);
    };
    return plan;
  });
  const Client first = Connect(), second = Connect();
  Ask(first, "/slow");
  Ask(second, "/slow");
  while (entered < 2) std::this_thread::yield();
  EXPECT_TRUE(IsAnswered(Connect(), "/health"));
  const Client refused = Connect();
  Ask(refused, "/else");
  EXPECT_EQ(refused.Read(), "");
  released.set_value();
  EXPECT_THAT(first.Read("answer of /slow"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(second.Read("answer of /slow"), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticedBehindItsNextRequest) {
  std::promise<void> begun, gone;
  std::shared_ptr<Responder> held;
  Start({}, [&](const HttpRequest& head) -> RequestPlan {
    if (head.path != "/held") return Echo(head);
    return {.handle =
                [&](const HttpRequest&, std::shared_ptr<Responder> responder) {
                  held = std::move(responder);
                  held->WhenGone([&] { gone.set_value(); });
                  begun.set_value();
                },
            .share = head.peer};
  });
  {
    const Client client = Connect();
    Ask(client, "/held");
    begun.get_future().wait();
    Ask(client, "/next");
    std::this_thread::sleep_for(milliseconds(100));  // until it has come
  }
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST_F(HttpServerTest, BytesThatCameCountAndNotThoseAnnounced) {
  Start({.max_body_bytes = 100'000, .max_total_body_bytes = 200'000}, Echo);
  const auto announce = [&](int host, size_t came) {
    Client client(server_->port(), 0, host);
    client.Send("POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + std::string(came, ' '));
    return client;
  };
  std::deque<Client> greedy;
  for (int i = 0; i < 10; ++i) greedy.push_back(announce(/*host=*/2, 1));        // a million bytes in all
  EXPECT_THAT(announce(/*host=*/3, 60'000).Read(), StartsWith("HTTP/1.1 429"));  // a quarter is one's share
  const Client other = Connect(/*host=*/4);
  other.Send("POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000\r\n\r\n" + std::string(30'000, ' '));
  EXPECT_THAT(other.Read("answer of /a"), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(HttpServerTest, CompressedBodiesAreDecodedAsTheyCome) {
  Start({.max_body_bytes = 100'000}, [](const HttpRequest& head) {
    RequestPlan plan = Echo(head);
    plan.is_gzip = true;
    plan.handle = [](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
      responder->Send({.body = std::to_string(request.body.size()) + " of " + request.body.substr(0, 3) + "!"});
    };
    return plan;
  });
  const auto answer = [&](const std::string& bytes, size_t piece) {
    const Client client = Connect();
    client.Send("POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(bytes.size()) + "\r\n\r\n");
    for (size_t begin = 0; begin < bytes.size(); begin += piece) client.Send(bytes.substr(begin, piece));
    return client.Read("}");
  };
  const auto body = [&](const std::string& bytes, size_t piece) {
    const Client client = Connect();
    client.Send("POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t begin = 0; begin < bytes.size(); begin += piece) {
      const std::string part = bytes.substr(begin, piece);
      client.Send(fmt::format("{:x}\r\n{}\r\n", part.size(), part));
    }
    client.Send("0\r\n\r\n");
    return client.Read("!");
  };
  const std::string text = "abc" + std::string(90'000, 'd'), packed = Gzip(text);
  for (const size_t piece : {size_t{1}, size_t{13}, packed.size()}) EXPECT_THAT(body(packed, piece), HasSubstr("90003 of abc!"));
  EXPECT_THAT(answer(Gzip(std::string(100'001, 'x')), 1000), AllOf(HasSubstr("413"), HasSubstr("when it is decoded")));
  EXPECT_THAT(answer(packed.substr(0, packed.size() - 3), 1000), AllOf(HasSubstr("400"), HasSubstr("ends before the gzip does")));
  EXPECT_THAT(answer("{}", 1000), AllOf(HasSubstr("400"), HasSubstr("the body is none")));
  EXPECT_THAT(answer("", 1000), HasSubstr("ends before the gzip does"));
}

TEST_F(HttpServerTest, EveryAnswerHasThePlansHeaders) {
  Start({.max_body_bytes = 10}, [](const HttpRequest& head) {
    RequestPlan plan = Echo(head);
    plan.answer_headers = {{"access-control-allow-origin", head.origin}};
    if (head.path == "/refused") plan.refusal = HttpResponse{.status = 404, .body = "none"};
    if (head.path == "/stream") {
      plan.handle = [](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        responder->BeginStream();
        responder->Write("data: 1\n\n");
        responder->EndStream();
      };
    }
    return plan;
  });
  const auto ask = [&](const std::string& path, size_t size = 0) {
    const Client client = Connect();
    client.Send("POST " + path +
                " HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\nConnection: close\r\nContent-Length: " +
                std::to_string(size) + "\r\n\r\n" + std::string(size, ' '));
    return client.Read();
  };
  for (const std::string& answer : {ask("/a"), ask("/refused"), ask("/stream"), ask("/a", 11)})
    EXPECT_THAT(answer, HasSubstr("access-control-allow-origin: https://a.example\r\n"));
  const Client client = Connect();  // the next request on a connection has its own
  client.Send("GET /a HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n\r\nnonsense\r\n\r\n");
  const std::string answers = client.Read();
  EXPECT_EQ(answers.find("access-control"), answers.rfind("access-control"));
}

TEST_F(HttpServerTest, BehindTrustedProxiesAClientIsTheOneTheyName) {
  Start({.trusted_proxies = TrustedProxies::Parse(std::vector<std::string>{"127.0.0.2"}).value()}, [](const HttpRequest& head) {
    RequestPlan plan;
    plan.refusal = HttpResponse{.body = "you are " + head.peer + "!"};
    return plan;
  });
  const auto peer = [&](int host) {
    const Client client = Connect(host);
    client.Send("GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n");
    return client.Read("!");
  };
  EXPECT_THAT(peer(2), HasSubstr("you are 203.0.113.9"));
  EXPECT_THAT(peer(3), HasSubstr("you are 127.0.0.3"));
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
  Start({.head_timeout = milliseconds(100), .body_timeout = milliseconds(100)});
  const Client head = Connect(), body = Connect();
  head.Send("GET /health HTTP/1.1\r\nHo");
  body.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{");
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

TEST_F(ServingTest, UnreadAnswersGiveWay) {
  Start({.max_unwritten_bytes = 1 << 20});
  std::vector<std::unique_ptr<Client>> slow;
  std::string asks;  // for more than the sockets hold; in one piece, before the first answer can be cut
  for (int i = 0; i < 100; ++i) asks += "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (int i = 0; i < 60; ++i) {
    slow.push_back(std::make_unique<Client>(http_->port(), /*receive_buffer=*/4096));
    slow.back()->Send(asks);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (http_->num_connections() > 20 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_LE(http_->num_connections(), 20);  // each that is left holds one document of more than 60 KB
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

TEST_F(ServingTest, ALostDeviceIsReportedToWaitingClients) {
  const std::string answer = AnswerWithoutADevice(R"({"prompt": [1, 2], "max_tokens": 3})");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("the device is lost"));
}

TEST_F(ServingTest, ALostDeviceIsReportedInAStreamThatHasBegun) {
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
