// Memory that is refused, at every place where an engine asks for it: requests end, each once, and the engine goes on. Layer:
// engine, tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "tests/support/heap.h"

namespace coppice {
namespace {

// Events of one request, summed up.
struct Heard {
  std::vector<std::optional<FinishReason>> reasons;  // by sample
  std::vector<std::vector<int32_t>> tokens;
  int32_t done = 0;        // events that said that they are the last
  int32_t after_done = 0;  // events that came after it, or after a sample's end
  Status status;
};

class Scenario {
 public:
  explicit Scenario(const EngineConfig& config) : harness_(config) {}

  // Nothing where the engine had no memory for the request.
  Heard* Submit(Request request) {
    std::unique_ptr<Heard> heard;
    {
      const heap::Exempt exempt;
      heard = std::make_unique<Heard>();
      heard->reasons.resize(request.n);
      heard->tokens.resize(request.n);
      request.on_event = [heard = heard.get()](const StreamEvent& event) {
        const heap::Exempt ours;
        heard->after_done += heard->done;
        heard->done += event.request_done;
        if (!event.status.ok()) heard->status = event.status;
        if (event.index < 0) return;
        heard->after_done += heard->reasons[event.index].has_value();
        std::ranges::copy(event.token_ids, std::back_inserter(heard->tokens[event.index]));
        if (event.finish_reason) heard->reasons[event.index] = event.finish_reason;
      };
    }
    const Result<RequestId> id = harness_.engine().Submit(std::move(request));
    const heap::Exempt exempt;
    if (!id.ok()) {
      EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted) << id.status().ToString();
      return nullptr;
    }
    ids_.push_back(*id);
    return heard_.emplace_back(std::move(heard)).get();
  }

  // A bit of everything, steps in between.
  void Play() {
    Submit(Make(40, 0, 12, 3));
    Step(2);
    Request stops = Make(40, 0, 20, 2);
    {
      const heap::Exempt exempt;
      for (int32_t i = 20; i < 40; ++i) stops.prompt_ids[i] = i;  // shares half of the first one's
      stops.stop = {"q", "xy"};
      stops.top_logprobs = 2;
      stops.sampling.temperature = 1;
    }
    Submit(std::move(stops));
    Request pinned = Make(30, 1, 9, 1);
    {
      const heap::Exempt exempt;
      pinned.pin_prompt_as = "p";
      pinned.sampling.repetition_penalty = 1.2f;
      pinned.sampling.frequency_penalty = 0.3f;
      pinned.prompt_logprobs = pinned.echo = true;
      pinned.cache_salt = "salt";
      pinned.cache_private_begin = 10;
    }
    Submit(std::move(pinned));
    Step(6);
    Submit(Make(50, 2, 25, 4));  // more than runs at a time
    if (!ids_.empty()) (void)harness_.engine().Cancel(ids_.front());
    Step(8);
    (void)harness_.engine().Unpin("p");
    RunToEnd();
  }

  // Invariants after any refusal of memory.
  void Check() {
    heap::Refuse(INT64_MAX / 4, 0);
    RunToEnd();  // what waits for memory
    for (size_t r = 0; r < heard_.size(); ++r) {
      const Heard& heard = *heard_[r];
      EXPECT_EQ(heard.done, 1) << "request " << r;
      EXPECT_EQ(heard.after_done, 0) << "request " << r;
      for (const auto& reason : heard.reasons) EXPECT_TRUE(reason.has_value()) << "request " << r;
      const bool failed = std::ranges::any_of(heard.reasons, [](const auto& reason) { return reason == FinishReason::kError; });
      EXPECT_EQ(heard.status.code(), failed ? StatusCode::kResourceExhausted : StatusCode::kOk) << heard.status.ToString();
    }
    const Status whole = harness_.cache().CheckIntegrity();
    EXPECT_TRUE(whole.ok()) << whole.ToString();
    // It goes on as if nothing had been.
    const Request again = Make(40, 0, 12, 3);
    const Heard* const heard = Submit(again);
    ASSERT_NE(heard, nullptr);
    RunToEnd();
    for (const std::vector<int32_t>& tokens : heard->tokens) EXPECT_EQ(tokens, harness_.GreedyAfter(again.prompt_ids, 12));
    EXPECT_TRUE(harness_.cache().CheckIntegrity().ok());
    EXPECT_EQ(harness_.engine().Load().running + harness_.engine().Load().waiting, 0);
    harness_.cache().DropCached();
    EXPECT_LE(harness_.cache().usage().pages_owned, 30 / 4 + 1);  // the pin's, whose Unpin may have been refused
  }

 private:
  static Request Make(int32_t length, int32_t seed, int32_t max_tokens, int32_t n) {
    const heap::Exempt exempt;
    return Greedy(Prompt(length, seed), max_tokens, n);
  }
  void Step(int count) {
    for (int i = 0; i < count; ++i) (void)StepOnce();
  }
  // Whether there may be more to do.
  bool StepOnce() {
    const Result<bool> worked = harness_.engine().Step();
    const heap::Exempt exempt;
    EXPECT_TRUE(worked.ok() || worked.status().code() == StatusCode::kResourceExhausted) << worked.status().ToString();
    return !worked.ok() || *worked;
  }
  void RunToEnd() {
    int steps = 0;
    while (StepOnce()) ASSERT_LT(++steps, 10000) << "the engine does not come to an end";
  }

  EngineHarness harness_;
  std::vector<std::unique_ptr<Heard>> heard_;
  std::vector<RequestId> ids_;
};

EngineConfig Config(int32_t steps_ahead, bool event_thread, DraftMode draft) {
  return {.model = {.vocab_size = 64, .max_position = 200, .num_pages = 60, .page_size = 4},
          .max_running = 5,
          .max_batch_tokens = 48,
          .chunk = 24,
          .texts = Letters(64),
          .draft = draft,
          .steps_ahead = steps_ahead,
          .event_thread = event_thread};
}

// In turns, the k-th request for memory is refused, alone or with those after it.
void RefuseEverywhere(const EngineConfig& config) {
  int64_t all = 0;
  {
    Scenario scenario(config);
    const int64_t before = heap::NumAllocations();
    scenario.Play();
    all = heap::NumAllocations() - before;
    scenario.Check();
  }
  ASSERT_GT(all, 500);
  const int64_t most = std::getenv("COPPICE_LONG_TEST") != nullptr ? all : 400;
  for (int64_t refused : {1, 7, 200}) {
    for (int64_t k = 0; k < most; ++k) {
      const int64_t granted = most == all ? k : k * all / most;
      SCOPED_TRACE("refused " + std::to_string(refused) + " after " + std::to_string(granted) + " of " + std::to_string(all));
      Scenario scenario(config);
      heap::Refuse(granted, refused);
      scenario.Play();
      scenario.Check();
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(EngineExhaustion, RequestsEndAndTheEngineGoesOn) { RefuseEverywhere(Config(0, false, DraftMode::kNone)); }
TEST(EngineExhaustion, WithAStepAhead) { RefuseEverywhere(Config(1, false, DraftMode::kNone)); }
TEST(EngineExhaustion, WithAnEventThread) { RefuseEverywhere(Config(1, true, DraftMode::kNone)); }
TEST(EngineExhaustion, WithNgramDrafts) { RefuseEverywhere(Config(0, false, DraftMode::kNgram)); }
TEST(EngineExhaustion, WithADraftModel) { RefuseEverywhere(Config(0, false, DraftMode::kModel)); }

}  // namespace
}  // namespace coppice
