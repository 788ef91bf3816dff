// Clients that wait for grammars, and the ends of their wait.
#include "grammar/compile_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <set>

namespace coppice {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Constraint = CompileQueue::Constraint;

struct FakeConstraint final : TokenConstraint {
  explicit FakeConstraint(std::string text) : text(std::move(text)) {}
  std::unique_ptr<ConstraintState> Begin() const override { return nullptr; }
  int32_t vocab_size() const override { return 1; }
  const std::string text;
};

// A text with "slow" in it takes until it is stopped or let through, one with "bad" is an error, all others are done at once.
class FakeCompiler final : public GrammarCompiler {
 public:
  Result<Constraint> Compile(const GrammarSource& source, std::stop_token stop) override {
    const std::stop_callback wake(stop, [this] { changed_.notify_all(); });
    std::unique_lock lock(mutex_);
    began_.push_back(source.text);
    changed_.notify_all();
    const bool slow = source.text.find("slow") != std::string::npos;
    while (slow && !stop.stop_requested() && !through_.contains(source.text)) changed_.wait_for(lock, 10ms);
    if (stop.stop_requested()) return Status(StatusCode::kCancelled, "stopped");
    if (source.text.find("bad") != std::string::npos) return InvalidArgument("it is bad");
    return Constraint(std::make_shared<FakeConstraint>(source.text));
  }
  Constraint CountIn(const TokenConstraint& constraint, std::shared_ptr<LiveParserStates>) const override {
    return std::make_shared<FakeConstraint>(static_cast<const FakeConstraint&>(constraint).text);
  }
  int64_t BytesOf(const TokenConstraint&) const override { return 1000; }

  void LetThrough(const std::string& text) {
    const std::lock_guard lock(mutex_);
    through_.insert(text);
    changed_.notify_all();
  }
  // Waits until so many have begun.
  std::vector<std::string> AwaitBegun(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 10s, [&] { return began_.size() >= count; });
    return began_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> began_;
  std::set<std::string> through_;
};

// The answer of a ticket.
struct Asked {
  CompileQueue::Ticket ticket = 0;
  std::future<Result<Constraint>> answer;

  bool is_answered() { return answer.wait_for(0s) == std::future_status::ready; }
  Result<Constraint> Await() {
    EXPECT_EQ(answer.wait_for(10s), std::future_status::ready);
    return answer.get();
  }
  std::string AwaitError() { return Await().status().ToString(); }
};

Asked Ask(CompileQueue& queue, const std::string& key, const std::string& text,
          std::optional<CompileQueue::Clock::time_point> deadline = std::nullopt) {
  const auto promise = std::make_shared<std::promise<Result<Constraint>>>();
  Asked asked = {.answer = promise->get_future()};
  asked.ticket = queue.Compile(key, {GrammarKind::kRegex, text}, deadline,
                               [promise](Result<Constraint> compiled) { promise->set_value(std::move(compiled)); });
  return asked;
}

std::string TextOf(const Constraint& constraint) { return static_cast<const FakeConstraint&>(*constraint).text; }

TEST(CompileQueue, EqualSourcesOfAKeyAreCompiledOnceAndKept) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler);
  Asked first = Ask(queue, "alice", "slow a");
  compiler.AwaitBegun(1);
  Asked second = Ask(queue, "alice", "slow a");
  compiler.LetThrough("slow a");
  const Constraint used = *first.Await();
  EXPECT_EQ(TextOf(used), "slow a");
  EXPECT_EQ(*second.Await(), used);
  Asked later = Ask(queue, "alice", "slow a");
  EXPECT_TRUE(later.is_answered());  // in the call
  EXPECT_EQ(*later.Await(), used);
  EXPECT_EQ(compiler.AwaitBegun(1).size(), 1u);
  EXPECT_EQ(Ask(queue, "alice", "bad").AwaitError(), "INVALID_ARGUMENT: it is bad");
}

// The time of an answer shows no key what another one asked for.
TEST(CompileQueue, WhatAKeyCompiledIsNotFoundByOthers) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler);
  const Constraint kept = *Ask(queue, "alice", "a").Await();
  Asked other = Ask(queue, "bob", "a");
  EXPECT_NE(*other.Await(), kept);
  EXPECT_EQ(compiler.AwaitBegun(2), (std::vector<std::string>{"a", "a"}));
  // A running job of another key is not found either.
  Asked slow = Ask(queue, "alice", "slow"), slow_too = Ask(queue, "bob", "slow");
  EXPECT_EQ(compiler.AwaitBegun(4).size(), 4u);
  queue.Cancel(slow.ticket);
  EXPECT_FALSE(slow_too.is_answered());
  compiler.LetThrough("slow");
  EXPECT_TRUE(slow_too.Await().ok());
}

TEST(CompileQueue, AKeyPushesNothingOfOthersOut) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler, {.kept_bytes = 7000});  // of three
  EXPECT_TRUE(Ask(queue, "bob", "b").Await().ok());
  for (const char* text : {"1", "2", "3", "4", "5"}) EXPECT_TRUE(Ask(queue, "alice", text).Await().ok());
  EXPECT_TRUE(Ask(queue, "bob", "b").is_answered());
  EXPECT_TRUE(Ask(queue, "alice", "5").is_answered());
  Asked gone = Ask(queue, "alice", "1");
  EXPECT_TRUE(gone.Await().ok());
  EXPECT_EQ(compiler.AwaitBegun(7).size(), 7u);
}

TEST(CompileQueue, AKeyHoldsUpNoOther) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler, {.threads = 2});
  Asked a = Ask(queue, "alice", "slow a"), b = Ask(queue, "alice", "slow b"), c = Ask(queue, "alice", "slow c");
  compiler.AwaitBegun(1);
  EXPECT_TRUE(Ask(queue, "bob", "quick").Await().ok());
  EXPECT_EQ(compiler.AwaitBegun(2), (std::vector<std::string>{"slow a", "quick"}));  // one at a time of alice's
  compiler.LetThrough("slow a");
  EXPECT_TRUE(a.Await().ok());
  compiler.AwaitBegun(3);
  queue.Cancel(c.ticket);
  EXPECT_EQ(c.AwaitError(), "CANCELLED: it was cancelled");
  queue.Cancel(b.ticket);
  EXPECT_EQ(b.AwaitError(), "CANCELLED: it was cancelled");
  EXPECT_TRUE(Ask(queue, "alice", "other").Await().ok());  // b was let go
  EXPECT_EQ(compiler.AwaitBegun(4), (std::vector<std::string>{"slow a", "quick", "slow b", "other"}));
}

TEST(CompileQueue, TurnsGoByKey) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler, {.threads = 1});
  std::vector<Asked> asked;
  asked.push_back(Ask(queue, "alice", "slow a"));
  compiler.AwaitBegun(1);
  for (const char* text : {"a1", "a2", "a3"}) asked.push_back(Ask(queue, "alice", text));
  for (const char* text : {"b1", "b2"}) asked.push_back(Ask(queue, "bob", text));
  compiler.LetThrough("slow a");
  const std::vector<std::string> order = compiler.AwaitBegun(6);
  EXPECT_EQ(order[1], "b1");
  EXPECT_LT(std::ranges::find(order, "b2") - order.begin(), std::ranges::find(order, "a3") - order.begin());
  for (Asked& one : asked) EXPECT_TRUE(one.Await().ok());
}

TEST(CompileQueue, WhatOthersAskForToGoesOn) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler);
  Asked a = Ask(queue, "alice", "slow"), b = Ask(queue, "alice", "slow");
  compiler.AwaitBegun(1);
  queue.Cancel(a.ticket);
  EXPECT_THAT(a.AwaitError(), HasSubstr("CANCELLED"));
  EXPECT_FALSE(b.is_answered());
  compiler.LetThrough("slow");
  EXPECT_TRUE(b.Await().ok());
  queue.Cancel(b.ticket);  // is answered: nothing
}

TEST(CompileQueue, DeadlinesEndWhatWaitsAndWhatRuns) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler, {.threads = 1});
  const auto soon = CompileQueue::Clock::now() + 50ms;
  Asked runs = Ask(queue, "alice", "slow a", soon), waits = Ask(queue, "alice", "slow b", soon),
        patient = Ask(queue, "alice", "c", soon + 1h);
  EXPECT_THAT(runs.AwaitError(), HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(waits.AwaitError(), HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_TRUE(patient.Await().ok());
}

TEST(CompileQueue, AStopEndsAllAtOnce) {
  FakeCompiler compiler;
  std::vector<Asked> asked;
  {
    CompileQueue queue(&compiler, {.threads = 2});
    for (const char* key : {"alice", "bob", "carol"}) asked.push_back(Ask(queue, key, std::string("slow ") + key));
    compiler.AwaitBegun(2);
    queue.Stop(Unavailable("the end"));
    for (Asked& one : asked) EXPECT_EQ(one.AwaitError(), "UNAVAILABLE: the end");
    EXPECT_EQ(Ask(queue, "dave", "quick").AwaitError(), "UNAVAILABLE: the end");
    asked.clear();
  }
  CompileQueue queue(&compiler);
  asked.push_back(Ask(queue, "alice", "slow"));
  compiler.AwaitBegun(3);
}  // the queue's end is one too

TEST(CompileQueue, NoClientFillsItOrTheMemory) {
  FakeCompiler compiler;
  CompileQueue queue(&compiler, {.threads = 1, .max_waiting = 4, .kept_bytes = 5000, .max_bytes_per_key = 3000});
  std::vector<Asked> asked;
  for (const char* key : {"alice", "alice", "bob"}) asked.push_back(Ask(queue, key, "slow " + std::to_string(asked.size())));
  EXPECT_EQ(Ask(queue, "alice", "a").AwaitError(),
            "RESOURCE_EXHAUSTED: 3 grammars wait to be compiled, 2 of this API key; send this one again later");
  asked.push_back(Ask(queue, "carol", "slow c"));
  EXPECT_THAT(Ask(queue, "dave", "d").AwaitError(), HasSubstr("4 grammars wait to be compiled, 0 of this API key"));
  for (Asked& one : asked) queue.Cancel(one.ticket);

  std::vector<Constraint> in_use;
  for (const char* text : {"1", "2", "3"}) in_use.push_back(*Ask(queue, "erin", text).Await());
  in_use.push_back(*Ask(queue, "erin", "3").Await());  // is the same one
  EXPECT_EQ(in_use[2].get(), in_use[3].get());
  EXPECT_THAT(Ask(queue, "erin", "4").AwaitError(), HasSubstr("take 0 MiB, expected at most 0 with this one"));
  EXPECT_TRUE(Ask(queue, "frank", "4").Await().ok());
  in_use.erase(in_use.begin());
  EXPECT_TRUE(Ask(queue, "erin", "5").Await().ok());
  // Of what is kept the oldest goes.
  const size_t begun = compiler.AwaitBegun(0).size();
  EXPECT_TRUE(Ask(queue, "erin", "1").Await().ok());
  EXPECT_EQ(compiler.AwaitBegun(begun + 1).size(), begun + 1);
}

TEST(CompileQueue, FromManyThreadsEachIsAnsweredOnce) {
  FakeCompiler compiler;
  std::atomic<int> received = 0;
  {
    CompileQueue queue(&compiler, {.threads = 3});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) {
          const std::string text = (i % 7 == 0 ? "slow " : i % 5 == 0 ? "bad " : "") + std::to_string(i % 20);
          const CompileQueue::Ticket ticket = queue.Compile("key" + std::to_string(t % 3), {GrammarKind::kRegex, text},
                                                            std::nullopt, [&](const auto&) { ++received; });
          if (i % 3 == 0 || i % 7 == 0) queue.Cancel(ticket);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(received, 400);
}

}  // namespace
}  // namespace coppice
