// The client of TCPStore against a listener that plays a script: what it sends, and what it makes of answers that are late, cut,
// too long or another service's.
#include "server/trainer/tcp_store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

namespace coppice::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

TcpStore::MayWait For(milliseconds time) {
  return [end = Clock::now() + time]() -> Status { return Clock::now() < end ? OkStatus() : Unavailable("it is late"); };
}

std::string Bytes(const char* text, size_t size) { return {text, size}; }
template <class T>
std::string Number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
std::string Text(const std::string& text) { return Number(uint64_t{text.size()}) + text; }

// A listener of one connection, whose end of it a function plays.
class Script {
 public:
  explicit Script(std::function<void(Script&)> play) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this, play = std::move(play)] {
      connection_ = accept(listener_, nullptr, nullptr);
      play(*this);
      Close();
    });
  }
  ~Script() {
    thread_.join();
    close(listener_);
  }
  uint16_t port() const { return port_; }

  std::string Receive(size_t size) const {
    std::string bytes(size, '\0');
    EXPECT_EQ(recv(connection_, bytes.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    return bytes;
  }
  void Send(const std::string& bytes) const {
    EXPECT_EQ(send(connection_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // Answers what every client sends first.
  void Greet() const {
    EXPECT_EQ(Receive(5), Bytes("\0\xce\xf7\x85\x3c", 5));
    EXPECT_EQ(Receive(1), "\x0d");
    Send(Receive(4));
  }
  // Until the client has gone.
  void AwaitEnd() const {
    char byte = 0;
    while (recv(connection_, &byte, 1, 0) > 0) {
    }
  }
  void Close() {
    if (connection_ >= 0) close(std::exchange(connection_, -1));
  }

 private:
  int listener_, connection_ = -1;
  uint16_t port_ = 0;
  std::jthread thread_;
};

TEST(TcpStore, SpeaksAsWorkersDo) {
  Script script([](Script& store) {
    store.Greet();
    EXPECT_EQ(store.Receive(1 + 8 + 5 + 8), "\x04" + Text("init/") + Number(int64_t{1}));
    store.Send(Number(int64_t{2}));
    EXPECT_EQ(store.Receive(1 + 8 + 8 + 4), "\x06" + Number(uint64_t{1}) + Text("/key"));
    std::this_thread::sleep_for(milliseconds(50));
    store.Send(Bytes("\0", 1));
    EXPECT_EQ(store.Receive(1 + 8 + 4), "\x03" + Text("/key"));
    const std::string answer = Text("value");
    for (const char byte : answer) store.Send(std::string(1, byte));
    store.AwaitEnd();
  });
  TcpStore store = TcpStore::Connect("localhost", script.port(), For(std::chrono::seconds(60))).value();
  ASSERT_TRUE(store.JoinWorkers(For(std::chrono::seconds(60))).ok());
  const std::vector<std::byte> value = store.Get("key", For(std::chrono::seconds(60))).value();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(value.data()), value.size()), "value");
  EXPECT_TRUE(store.CheckOpen().ok());
}

TEST(TcpStore, AnotherServiceIsNone) {
  Script http([](Script& service) {
    service.Receive(10);
    service.Send("HTTP/1.1 400 Bad Request\r\n");
    service.AwaitEnd();
  });
  const Status refused = TcpStore::Connect("127.0.0.1", http.port(), For(std::chrono::seconds(60))).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("no store of torch.distributed"));
  EXPECT_THAT(TcpStore::Connect("no such host", 1, For(milliseconds(10))).status().message(),
              HasSubstr("\"no such host\" is unknown"));
}

TEST(TcpStore, WaitsNoLongerThanItMay) {
  Script silent([](Script& store) {
    store.Greet();
    store.AwaitEnd();
  });
  {
    TcpStore store = TcpStore::Connect("127.0.0.1", silent.port(), For(std::chrono::seconds(60))).value();
    const Clock::time_point begin = Clock::now();
    EXPECT_EQ(store.Get("key", For(milliseconds(60))).status().message(), "it is late");
    EXPECT_GE(Clock::now() - begin, milliseconds(60));
  }
  uint16_t free_port = 0;
  {
    Script gone([](Script&) {});
    free_port = gone.port();
    close(socket(AF_INET, SOCK_STREAM, 0));
    (void)TcpStore::Connect("127.0.0.1", free_port, For(milliseconds(500)));
  }
  EXPECT_THAT(TcpStore::Connect("127.0.0.1", free_port, For(milliseconds(60))).status().message(),
              HasSubstr("it is late; 127.0.0.1:" + std::to_string(free_port) + " says: Connection refused"));
}

TEST(TcpStore, AnswersCostNoMoreThanTheyMay) {
  Script large([](Script& store) {
    store.Greet();
    store.Receive(1 + 8 + 8 + 4);
    store.Send(Bytes("\0", 1));
    store.Receive(1 + 8 + 4);
    store.Send(Number(uint64_t{1} << 60));
    store.AwaitEnd();
  });
  {
    TcpStore store = TcpStore::Connect("127.0.0.1", large.port(), For(std::chrono::seconds(60))).value();
    EXPECT_EQ(store.Get("key", For(std::chrono::seconds(60))).status().message(),
              "\"key\" of the trainer's store has 1152921504606846976 bytes, expected at most 4096");
  }
  Script strange([](Script& store) {
    store.Greet();
    store.Receive(1 + 8 + 8 + 4);
    store.Send("\x07");
    store.AwaitEnd();
  });
  TcpStore store = TcpStore::Connect("127.0.0.1", strange.port(), For(std::chrono::seconds(60))).value();
  EXPECT_THAT(store.Get("key", For(std::chrono::seconds(60))).status().message(), HasSubstr("does not speak as TCPStore does"));
}

TEST(TcpStore, AnEndIsNoticed) {
  Script cut([](Script& store) {
    store.Greet();
    store.Receive(1 + 8 + 8 + 4);
  });
  TcpStore store = TcpStore::Connect("127.0.0.1", cut.port(), For(std::chrono::seconds(60))).value();
  const Status broken = store.Get("key", For(std::chrono::seconds(60))).status();
  EXPECT_EQ(broken.code(), StatusCode::kUnavailable);
  EXPECT_THAT(broken.message(), HasSubstr("the connection to the trainer's store broke"));
  EXPECT_THAT(store.CheckOpen().message(), HasSubstr("closed its store"));
}

}  // namespace
}  // namespace coppice::server
