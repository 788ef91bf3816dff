// The driver of a call's requests over an engine with a fake model: what it counts, when it ends, and what ends the rest.
#include "openai/request_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice::openai {
namespace {

using ::testing::HasSubstr;

class RecordingCall final : public RequestDriver {
 public:
  using RequestDriver::failure, RequestDriver::refused, RequestDriver::cancelled, RequestDriver::ended, RequestDriver::counts,
      RequestDriver::begun, RequestDriver::usage, RequestDriver::Submit, RequestDriver::Fail, RequestDriver::Begin;
  using RequestDriver::RequestDriver;

  void Start(std::vector<Request> requests) {
    Begin([&] {
      for (Request& request : requests) Submit(std::move(request));
    });
  }

  std::vector<size_t> order;  // of the requests whose events came
  int64_t tokens = 0;
  int ends = 0;
  bool has_memory = true;                                // to report the end
  std::function<void(size_t, const StreamEvent&)> then;  // after each event

 private:
  void OnEvent(size_t request, const StreamEvent& event) override {
    EXPECT_EQ(ends, 0) << "an event after the end";
    order.push_back(request);
    tokens += std::ssize(event.token_ids);
    if (then) then(request, event);
  }
  void OnEnd() override {
    if (!std::exchange(has_memory, true)) throw std::bad_alloc();
    ++ends;
  }
};

class RequestDriverTest : public ::testing::Test {
 protected:
  std::shared_ptr<RecordingCall> Call() { return std::make_shared<RecordingCall>(&harness_.engine()); }
  Request Some(int32_t first, int32_t max_tokens = 4, int32_t n = 1) const {
    Request request = Greedy({first, 2, 3, 4, 5, 6, 7, 8, 9}, max_tokens, n);
    request.ignore_eos = true;
    return request;
  }
  int32_t InEngine() {
    const EngineLoad load = harness_.engine().Load();
    return load.waiting + load.running;
  }

  EngineHarness harness_{{.model = {.max_position = 64}, .max_running = 8, .max_waiting = 6}};
};

TEST_F(RequestDriverTest, SeveralRequestsEndTogetherAndAreCountedApart) {
  const auto call = Call();
  call->Start({Some(10, 2), Some(20, 6, /*n=*/2), Some(10, 4)});
  EXPECT_FALSE(call->begun());
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_TRUE(call->ended() && call->begun());
  EXPECT_TRUE(call->failure().ok());
  ASSERT_EQ(call->counts().size(), 3u);
  EXPECT_EQ(call->counts()[0].generated_tokens, 2);
  EXPECT_EQ(call->counts()[1].generated_tokens, 2 * 6);
  EXPECT_EQ(call->counts()[2].generated_tokens, 4);
  for (const RequestCounts& counts : call->counts()) EXPECT_TRUE(counts.begun && counts.done && !counts.cancelled);
  EXPECT_GT(call->counts()[1].shared_reads.kv_bytes_not_read, 0);  // its two samples read their prompt together
  const TokenUsage usage = call->usage(/*prompt_tokens=*/27);
  EXPECT_EQ(usage.prompt, 27);
  EXPECT_EQ(usage.completion, 2 + 2 * 6 + 4);
  EXPECT_EQ(usage.completion, call->tokens);
  EXPECT_GE(usage.shared_reads.kv_bytes_not_read, call->counts()[1].shared_reads.kv_bytes_not_read);
}

TEST_F(RequestDriverTest, WhatIsCachedIsReportedOfEachRequest) {
  const auto first = Call();
  first->Start({Some(10)});
  harness_.RunToEnd();
  const auto call = Call();
  call->Start({Some(10), Some(20)});
  harness_.RunToEnd();
  EXPECT_GT(call->counts()[0].cached_tokens, 0);
  EXPECT_EQ(call->counts()[1].cached_tokens, 0);
  EXPECT_EQ(call->usage(0).cached, call->counts()[0].cached_tokens);
}

TEST_F(RequestDriverTest, AFailureInTheMiddleEndsTheOthers) {
  const auto call = Call();
  call->Start({Some(10, 2), Some(20, 30), Some(30, 30)});
  harness_.Step();
  const auto other = Call();  // which is of another call
  other->Start({Some(40, 2)});
  call->then = [&](size_t request, const StreamEvent& event) {
    if (request == 0 && event.request_done) call->Fail(Internal("not a number"));
  };
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_EQ(call->failure().message(), "not a number");
  EXPECT_FALSE(call->refused() || call->cancelled());
  EXPECT_FALSE(call->counts()[0].cancelled);
  EXPECT_TRUE(call->counts()[1].cancelled && call->counts()[2].cancelled);
  EXPECT_LT(call->counts()[1].generated_tokens, 30);
  EXPECT_TRUE(other->ended() && other->failure().ok());
}

TEST_F(RequestDriverTest, TheFirstFailureIsKept) {
  const auto call = Call();
  call->Start({Some(10), Some(20)});
  harness_.Step();
  harness_.model().FailNext(Internal("the step broke"));
  EXPECT_FALSE(harness_.engine().Step().ok());
  EXPECT_EQ(call->ends, 1);
  EXPECT_THAT(call->failure().message(), HasSubstr("the step broke"));
  call->Fail(Internal("another"));
  EXPECT_THAT(call->failure().message(), HasSubstr("the step broke"));
}

TEST_F(RequestDriverTest, CancelBeforeAStepTookThemIn) {
  const auto call = Call();
  call->Start({Some(10), Some(20)});
  call->Cancel();
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_TRUE(call->cancelled());
  EXPECT_FALSE(call->begun());
  EXPECT_EQ(call->usage(0).completion, 0);
  EXPECT_TRUE(call->counts()[0].cancelled && call->counts()[1].cancelled);
}

TEST_F(RequestDriverTest, CancelBeforeTheyAreSubmitted) {
  const auto call = Call();
  call->Cancel();
  call->Start({Some(10), Some(20)});
  EXPECT_EQ(call->ends, 1);
  EXPECT_TRUE(call->counts().empty() && !call->refused());
  EXPECT_EQ(InEngine(), 0);
}

TEST_F(RequestDriverTest, CancelUnderWayKeepsWhatWasCounted) {
  const auto call = Call();
  call->Start({Some(10, 1), Some(20, 40)});
  harness_.Step(3);
  EXPECT_TRUE(call->counts()[0].done);
  call->Cancel();
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_FALSE(call->counts()[0].cancelled);
  EXPECT_TRUE(call->counts()[1].cancelled);
  EXPECT_GT(call->counts()[1].generated_tokens, 0);
  EXPECT_EQ(call->usage(0).completion, call->tokens);
}

TEST_F(RequestDriverTest, ADeadlineIsAFailure) {
  const auto call = Call();
  Request request = Some(10, 40);
  request.timeout_seconds = 1e-9;
  call->Start({std::move(request)});
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_EQ(call->failure().code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(call->refused());
}

TEST_F(RequestDriverTest, NothingHappensAfterTheEnd) {
  const auto call = Call();
  call->Start({Some(10)});
  harness_.RunToEnd();
  const TokenUsage usage = call->usage(0);
  call->Cancel();
  EXPECT_FALSE(call->cancelled());
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_EQ(call->usage(0).completion, usage.completion);
}

TEST_F(RequestDriverTest, WhatIsRefusedEndsWhatWasTaken) {
  const auto none = Call();
  none->Start({Greedy({}, 4)});
  EXPECT_EQ(none->ends, 1);
  EXPECT_TRUE(none->refused() && none->counts().empty());
  EXPECT_EQ(none->failure().code(), StatusCode::kInvalidArgument);

  const auto call = Call();
  call->Start({Some(10), Some(20, 4, /*n=*/7), Some(30)});  // more than may wait
  EXPECT_TRUE(call->refused());
  EXPECT_EQ(call->failure().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(call->counts().size(), 1u);  // none after the one that was refused
  EXPECT_EQ(call->ends, 0);
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_TRUE(call->counts()[0].cancelled);
}

TEST_F(RequestDriverTest, RequestsThatFollowFromAnEvent) {
  const auto call = Call();
  call->then = [&](size_t request, const StreamEvent& event) {
    if (request > 0 || !event.request_done) return;
    EXPECT_TRUE(call->Submit(Some(20, 3)) && call->Submit(Some(30, 3)));
  };
  call->Start({Some(10, 1)});
  harness_.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  ASSERT_EQ(call->counts().size(), 3u);
  EXPECT_EQ(call->usage(0).completion, 1 + 3 + 3);
  EXPECT_EQ(call->order.front(), 0u);
  EXPECT_EQ(std::ranges::count(call->order, 0u), 1);
}

// The engine makes an error of what a listener throws, and sends it in place of the last event.
TEST_F(RequestDriverTest, AnEndThatFoundNoMemoryIsReportedAgain) {
  const auto call = Call();
  call->has_memory = false;
  call->Start({Some(10, 2)});
  for (int step = 0; step < 100 && !call->ended(); ++step) (void)harness_.engine().Step();
  EXPECT_EQ(call->ends, 1);
  EXPECT_EQ(call->failure().code(), StatusCode::kResourceExhausted);
}

TEST(RequestDriver, EventsOfAThreadOfTheEnginesOwn) {
  EngineHarness harness({.max_running = 8, .event_thread = true});
  const auto call = std::make_shared<RecordingCall>(&harness.engine());
  call->Start({Greedy(Prompt(9, 1), 5, 2), Greedy(Prompt(9, 2), 5)});
  harness.RunToEnd();
  EXPECT_EQ(call->ends, 1);
  EXPECT_EQ(call->usage(0).completion, call->tokens);
}

}  // namespace
}  // namespace coppice::openai
