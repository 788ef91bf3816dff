// Work in forked children: what it gives, and that it can be ended whatever it does.
#include "grammar/fork_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <vector>

namespace coppice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

// The files that this process has open, a line each.
std::string Descriptors() {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // that of the listing
    all += std::filesystem::read_symlink(entry.path(), gone).string() + "\n";
  }
  return all;
}

class TestWork final : public ForkedWork {
 public:
  void Prepare(std::string_view data) override {
    if (data == "bad") throw std::runtime_error("prepared badly");
    prepared_ = data;
  }
  std::string Run(std::string_view input) override {
    if (input == "pid") return std::to_string(getpid());
    if (input == "parent") return std::to_string(getppid());
    if (input == "descriptors") return Descriptors();
    if (input == "sleep") std::this_thread::sleep_for(std::chrono::minutes(5));
    if (input == "throw") throw std::runtime_error("it does not please");
    if (input == "crash") raise(SIGSEGV);
    if (input == "large") return std::string(size_t{20} << 20, 'x');
    if (input == "spin") {
      volatile int64_t rounds = 0;
      for (;;) {
        rounds = rounds + 1;
      }
    }
    if (input == "fill") {
      std::vector<std::string> all;
      for (;;) all.emplace_back(size_t{1} << 20, 'x');
    }
    prepared_ += input;  // in this child alone
    return prepared_;
  }

 private:
  std::string prepared_;
};

class ForkServerTest : public testing::Test {
 protected:
  std::unique_ptr<ForkServer> server_ =
      ForkServer::Start(std::make_unique<TestWork>(), {.name = "the test", .cpu_seconds = 0.2, .memory_bytes = 64 << 20}).value();
};

TEST_F(ForkServerTest, EachCallBeginsWithWhatWasPrepared) {
  ASSERT_TRUE(server_->Prepare("base ").ok());
  EXPECT_EQ(server_->Run("one").value(), "base one");
  EXPECT_EQ(server_->Run("two").value(), "base two");
  EXPECT_EQ(server_->Run("large").value().size(), size_t{20} << 20);
  EXPECT_EQ(server_->Run(std::string(1 << 20, 'y')).value().size(), (size_t{1} << 20) + 5);
  EXPECT_THAT(server_->Prepare("bad").message(), HasSubstr("prepared badly"));
}

TEST_F(ForkServerTest, WhatGoesWrongIsSaid) {
  EXPECT_THAT(server_->Run("throw").status().ToString(), HasSubstr("INTERNAL: it does not please"));
  EXPECT_THAT(server_->Run("crash").status().ToString(), HasSubstr("INTERNAL: the test crashed, or was killed"));
#if !defined(__SANITIZE_THREAD__)  // it would hold the signal back
  EXPECT_THAT(server_->Run("spin").status().ToString(), HasSubstr("DEADLINE_EXCEEDED: the test took too much CPU time"));
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_THAT(server_->Run("fill").status().ToString(), HasSubstr("RESOURCE_EXHAUSTED: the test took too much memory"));
#endif
  EXPECT_EQ(server_->Run("and on").value(), "and on");
}

TEST_F(ForkServerTest, AStopEndsTheChildAtOnce) {
  const int pid = std::stoi(server_->Run("pid").value());
  EXPECT_NE(pid, getpid());
  std::stop_source stop;
  const auto begin = Clock::now();
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  EXPECT_EQ(server_->Run("sleep", stop.get_token()).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(server_->Run("x", stop.get_token()).status().code(), StatusCode::kCancelled);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  stopper.join();
}

TEST_F(ForkServerTest, CallsRunBesideEachOther) {
  std::stop_source stop;
  std::thread slow([&] { EXPECT_FALSE(server_->Run("sleep", stop.get_token()).ok()); });
  EXPECT_EQ(server_->Run("quick").value(), "quick");
  stop.request_stop();
  slow.join();
}

TEST_F(ForkServerTest, AKilledServerIsReplaced) {
  ASSERT_TRUE(server_->Prepare("base ").ok());
  for (int round = 0; round < 3; ++round) {
    const int process = std::stoi(server_->Run("parent").value());
    ASSERT_NE(process, getpid());
    ASSERT_EQ(kill(process, SIGKILL), 0);
    // A call that reaches the old one is lost with it.
    std::string answer;
    for (const auto end = Clock::now() + std::chrono::seconds(10); answer.empty() && Clock::now() < end;) {
      if (const auto ran = server_->Run("one"); ran.ok()) answer = *ran;
    }
    EXPECT_EQ(answer, "base one");
    EXPECT_NE(std::stoi(server_->Run("parent").value()), process);
  }
}

TEST(ForkServer, HasNothingOpenOfTheProgram) {
  std::array<int, 2> pipe_ends = {-1, -1};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);  // not close-on-exec: nothing is executed
  const int listener = socket(AF_INET, SOCK_STREAM, 0), key_file = open("/proc/self/status", O_RDONLY);
  ASSERT_GE(listener, 0);
  ASSERT_GE(key_file, 0);
  const auto server = ForkServer::Start(std::make_unique<TestWork>()).value();
  close(pipe_ends[1]);
  char none = 0;
  EXPECT_EQ(read(pipe_ends[0], &none, 1), 0);  // the other end is open nowhere
  const std::string open = server->Run("descriptors").value();
  EXPECT_THAT(open, Not(HasSubstr("status"))) << open;
  EXPECT_EQ(open.find("socket:["), open.rfind("socket:[")) << open;  // its caller
  for (const int descriptor : {pipe_ends[0], listener, key_file}) close(descriptor);
}

TEST(ForkServer, NoProcessIsLeft) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // children of children become this process's
  {
    const auto server = ForkServer::Start(std::make_unique<TestWork>()).value();
    std::stop_source stop;
    std::thread slow([&] { (void)server->Run("sleep", stop.get_token()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
    slow.join();
  }
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (waitpid(-1, nullptr, WNOHANG) >= 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

}  // namespace
}  // namespace coppice
