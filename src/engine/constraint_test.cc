// Constrained samples: each says what the most probable of the allowed tokens are, whatever runs beside it, and ends where its
// constraint says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "engine/testing/fake_constraint.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocab = 64;

bool Follows(const ParityConstraint& constraint, const std::vector<int32_t>& tokens) {
  int32_t before = -1;
  return std::ranges::all_of(tokens, [&](int32_t token) { return constraint.Allows(std::exchange(before, token), token); });
}

EngineConfig ConfigOf(int steps_ahead) {
  return {.model = {.vocab_size = kVocab, .num_pages = 64}, .steps_ahead = steps_ahead, .late_runner = steps_ahead > 0};
}

TEST(Constraint, SamplesSayWhatIsAllowedWithAndWithoutStepsAhead) {
  const auto constraint = std::make_shared<ParityConstraint>(kVocab, 40);
  std::vector<Output> first;
  for (const int steps_ahead : {0, 1}) {
    EngineHarness harness(ConfigOf(steps_ahead));
    Request request = Greedy(Prompt(20), 12, 4);
    request.sampling = {.temperature = 1, .seed = 7};
    request.constraint = constraint;
    harness.Submit(request);
    harness.RunToEnd();
    for (const Output& output : harness.outputs(0)) {
      EXPECT_EQ(output.tokens.size(), 12u);
      EXPECT_EQ(output.reason, FinishReason::kLength);
      EXPECT_TRUE(Follows(*constraint, output.tokens));
    }
    EXPECT_NE(harness.outputs(0)[0].tokens, harness.outputs(0)[1].tokens);
    if (steps_ahead == 0) first = harness.outputs(0);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(harness.outputs(0)[i].tokens, first[i].tokens);
  }
}

TEST(Constraint, OthersAreNotDelayed) {
  EngineHarness harness(ConfigOf(1));
  harness.Submit(Greedy(Prompt(8, 1), 20));
  Request request = Greedy(Prompt(8, 2), 10);
  request.constraint = std::make_shared<ParityConstraint>(kVocab, kVocab);
  harness.Submit(request);
  for (int step = 0; step < 22 && !harness.done(0); ++step) harness.Step();
  EXPECT_TRUE(harness.done(0));
  EXPECT_EQ(harness.outputs(0)[0].tokens, harness.GreedyAfter(Prompt(8, 1), 20));
  EXPECT_GE(harness.outputs(1)[0].tokens.size(), 9u);  // it rode in every second step
  harness.RunToEnd();
}

TEST(Constraint, WhereTheOutputMayEndTheTokensThatEndItAreAllowed) {
  EngineHarness harness(ConfigOf(0));
  const auto constraint = std::make_shared<ParityConstraint>(kVocab, 50, /*ends_after=*/1);
  Request request = Greedy(Prompt(10), 40);
  request.constraint = constraint;
  request.stop_token_ids = {60};  // the constraint itself never allows it
  request.sampling.logit_bias = {{60, 1000.0f}};
  request.min_tokens = 5;
  harness.Submit(request);
  harness.RunToEnd();
  const Output& output = harness.outputs(0)[0];
  EXPECT_EQ(output.reason, FinishReason::kStop);
  ASSERT_EQ(output.tokens.size(), 6u);
  EXPECT_EQ(output.tokens.back(), 60);
  EXPECT_TRUE(Follows(*constraint, {output.tokens.begin(), output.tokens.end() - 1}));
}

// The most probable even token is the last one of the constraint.
std::shared_ptr<ParityConstraint> EndsAfterOne(EngineHarness& harness, int32_t ends_after) {
  Request probe = Greedy(Prompt(10), 1);
  probe.constraint = std::make_shared<ParityConstraint>(kVocab, kVocab);
  harness.Submit(probe);
  harness.RunToEnd();
  return std::make_shared<ParityConstraint>(kVocab, kVocab, ends_after, harness.outputs(0)[0].tokens[0]);
}

TEST(Constraint, ACompleteOutputEndsWithoutATokenThatSaysSo) {
  EngineHarness harness(ConfigOf(1));
  Request request = Greedy(Prompt(10), 40);
  request.constraint = EndsAfterOne(harness, /*ends_after=*/1);
  request.ignore_eos = true;
  request.min_tokens = 30;
  harness.Submit(request);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].reason, FinishReason::kStop);
  EXPECT_EQ(harness.outputs(1)[0].tokens.size(), 1u);
}

TEST(Constraint, ADeadEndIsAnErrorOfThatSample) {
  EngineHarness harness(ConfigOf(0));
  Request request = Greedy(Prompt(10), 40);
  request.constraint = EndsAfterOne(harness, /*ends_after=*/0);
  harness.Submit(request);
  harness.Submit(Greedy(Prompt(10), 8));
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].reason, FinishReason::kError);
  EXPECT_THAT(harness.outputs(1)[0].status.message(), HasSubstr("leave no token at token 11"));
  EXPECT_EQ(harness.outputs(2)[0].tokens, harness.GreedyAfter(Prompt(10), 8));
}

// Counts what the engine asks of a request's states, and is too slow after the tokens that say so.
class CountedConstraint final : public TokenConstraint {
 public:
  struct Counts {
    std::atomic<int> begun = 0, cloned = 0, accepted = 0, filled = 0, alive = 0;
  };
  explicit CountedConstraint(std::function<bool(const std::vector<int32_t>&)> is_slow = {}) : is_slow_(std::move(is_slow)) {}

  std::unique_ptr<ConstraintState> Begin() const override {
    ++counts.begun;
    return std::make_unique<State>(*this);
  }
  int32_t vocab_size() const override { return kVocab; }

  mutable Counts counts;

 private:
  class State final : public ConstraintState {
   public:
    explicit State(const CountedConstraint& constraint) : constraint_(constraint) { ++constraint_.counts.alive; }
    State(const State& other) : constraint_(other.constraint_), tokens_(other.tokens_) { ++constraint_.counts.alive; }
    ~State() override { --constraint_.counts.alive; }
    Result<bool> FillMask(std::span<uint32_t> mask) override {
      ++constraint_.counts.filled;
      if (constraint_.is_slow_ && constraint_.is_slow_(tokens_)) return ResourceExhausted("too slow");
      std::ranges::fill(mask, ~0u);
      return false;
    }
    Status Accept(int32_t token) override {
      ++constraint_.counts.accepted;
      tokens_.push_back(token);
      return OkStatus();
    }
    std::unique_ptr<ConstraintState> Clone() const override {
      ++constraint_.counts.cloned;
      return std::make_unique<State>(*this);
    }

   private:
    const CountedConstraint& constraint_;
    std::vector<int32_t> tokens_;
  };

  const std::function<bool(const std::vector<int32_t>&)> is_slow_;
};

Request Constrained(std::shared_ptr<const TokenConstraint> constraint, int32_t max_tokens, int32_t n, double temperature = 0) {
  Request request = Greedy(Prompt(10), max_tokens, n);
  request.sampling = {.temperature = static_cast<float>(temperature), .seed = 3};
  request.constraint = std::move(constraint);
  return request;
}

TEST(Constraint, SamplesWithTheSameOutputHaveOneStateAndOneMask) {
  for (const int steps_ahead : {0, 1}) {
    EngineHarness harness(ConfigOf(steps_ahead));
    const auto constraint = std::make_shared<CountedConstraint>();
    harness.Submit(Constrained(constraint, 12, 8));
    harness.RunToEnd();
    for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.tokens, harness.outputs(0)[0].tokens);
    EXPECT_EQ(constraint->counts.begun, 1);
    EXPECT_EQ(constraint->counts.cloned, 0);
    EXPECT_EQ(constraint->counts.filled, 12);
    EXPECT_EQ(constraint->counts.accepted, 11);  // the last token ends the samples
    EXPECT_EQ(constraint->counts.alive, 0);
  }
}

TEST(Constraint, StatesPartWhereOutputsDo) {
  for (const int steps_ahead : {0, 1}) {
    EngineHarness harness(ConfigOf(steps_ahead));
    const auto constraint = std::make_shared<CountedConstraint>();
    harness.Submit(Constrained(constraint, 12, 8, 1.5));
    harness.RunToEnd();
    std::set<std::vector<int32_t>> prefixes, ends;  // of outputs, before their last token
    for (const Output& output : harness.outputs(0)) {
      ASSERT_EQ(output.tokens.size(), 12u);
      for (size_t count = 0; count < 12; ++count) prefixes.emplace(output.tokens.begin(), output.tokens.begin() + count);
      ends.emplace(output.tokens.begin(), output.tokens.begin() + 11);
    }
    ASSERT_GT(ends.size(), 4u);
    EXPECT_EQ(constraint->counts.filled, static_cast<int>(prefixes.size()));
    EXPECT_EQ(constraint->counts.accepted, static_cast<int>(prefixes.size()) - 1);
    EXPECT_EQ(constraint->counts.cloned, static_cast<int>(ends.size()) - 1);
    EXPECT_EQ(constraint->counts.alive, 0);
  }
}

TEST(Constraint, ASlowMaskEndsTheSamplesOfItsConstraintUnmaskedAndNoOthers) {
  EngineHarness harness(ConfigOf(0));
  const auto slow = std::make_shared<CountedConstraint>([](const std::vector<int32_t>& tokens) { return tokens.size() == 4; });
  const auto quick = std::make_shared<ParityConstraint>(kVocab, kVocab);
  Request of_another = Constrained(slow, 3, 2, 1.5);  // the same grammar: before the place where it is slow
  of_another.share_of = "bob";
  harness.Submit(Constrained(slow, 12, 4, 1.5));
  harness.Submit(of_another);
  Request constrained = Greedy(Prompt(10), 8);
  constrained.constraint = quick;
  harness.Submit(constrained);
  harness.Submit(Greedy(Prompt(10), 8));
  harness.RunToEnd();
  for (const Output& output : harness.outputs(0)) {
    EXPECT_EQ(output.reason, FinishReason::kError);
    EXPECT_EQ(output.status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(output.tokens.size(), 4u);
  }
  for (const int other : {1, 2, 3}) {
    for (const Output& output : harness.outputs(other)) EXPECT_EQ(output.reason, FinishReason::kLength);
  }
  EXPECT_EQ(harness.outputs(3)[0].tokens, harness.GreedyAfter(Prompt(10), 8));
  EXPECT_EQ(slow->counts.alive, 0);
}

TEST(Constraint, WhatEndsWithAStepAsksForNoMoreMasks) {
  EngineHarness harness(ConfigOf(0));
  const auto slow = std::make_shared<CountedConstraint>([](const std::vector<int32_t>& tokens) { return tokens.size() == 1; });
  harness.Submit(Constrained(slow, 12, 8, 1.5));
  harness.RunToEnd();
  // The harness's engine has one thread: of the second masks the first one alone is asked for.
  EXPECT_EQ(slow->counts.filled, 2);
}

// Takes that much CPU time for each mask.
std::shared_ptr<const TokenConstraint> Spinning(std::chrono::milliseconds time) {
  return std::make_shared<CountedConstraint>([time](const std::vector<int32_t>&) {
    const std::clock_t begin = std::clock();  // of the process, whose one thread works
    while (1000.0 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < static_cast<double>(time.count())) continue;
    return false;
  });
}

// Each of its masks is quick enough; all that one key asks for in a step are not.
TEST(Constraint, TheMasksOfAKeyHaveABoundInAStep) {
  EngineHarness harness(ConfigOf(0));
  harness.Submit(Constrained(Spinning(std::chrono::milliseconds(50)), 2, 8, 1.5));
  harness.Submit(Greedy(Prompt(10), 8));
  harness.RunToEnd();
  int failed = 0;
  for (const Output& output : harness.outputs(0)) {
    failed += output.reason == FinishReason::kError;
    if (output.reason == FinishReason::kError) {
      EXPECT_EQ(output.status.code(), StatusCode::kInvalidArgument);
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 8);
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(Prompt(10), 8));
}

// Request 0 of alice, whose masks are slow, and request 1 of bob, which has none.
void SubmitSlowAndOther(EngineHarness* harness, int32_t slow_tokens, int32_t other_tokens) {
  Request slow = Constrained(Spinning(std::chrono::milliseconds(20)), slow_tokens, 1);
  slow.share_of = "alice";
  Request other = Greedy(Prompt(10, 5), other_tokens);
  other.share_of = "bob";
  harness->Submit(slow);
  harness->Submit(other);
}

TEST(Constraint, SlowMasksWaitForOthersAndNotForThemselves) {
  for (const int steps_ahead : {0, 1}) {
    EngineHarness harness(ConfigOf(steps_ahead));
    SubmitSlowAndOther(&harness, 8, 60);
    while (!harness.outputs(1)[0].reason) harness.Step();
    EXPECT_EQ(harness.outputs(1)[0].tokens.size(), 60u);
    EXPECT_LT(harness.outputs(0)[0].tokens.size(), 8u);  // while bob's had 60 steps
    harness.RunToEnd();
    EXPECT_EQ(harness.outputs(0)[0].reason, FinishReason::kLength);
    EXPECT_EQ(harness.outputs(0)[0].tokens.size(), 8u);
  }
}

// Other requests may need room that a waiting sample has: then it goes on.
TEST(Constraint, SlowMasksDoNotWaitForWhatCannotRun) {
  EngineConfig config = ConfigOf(0);
  config.max_running = 1;
  EngineHarness harness(config);
  SubmitSlowAndOther(&harness, 3, 4);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(0)[0].tokens.size(), 3u);
  EXPECT_EQ(harness.outputs(1)[0].tokens.size(), 4u);
}

TEST(Constraint, OfAnotherVocabularyIsRefused) {
  EngineHarness harness(ConfigOf(0));
  Request request = Greedy(Prompt(10), 4);
  request.constraint = std::make_shared<ParityConstraint>(kVocab - 1, 5);
  const Result<RequestId> id = harness.engine().Submit(request);
  ASSERT_FALSE(id.ok());
  EXPECT_THAT(id.status().message(), HasSubstr("the vocabulary of constraint is 63, expected 64 tokens, the model's"));
}

TEST(Constraint, SamplesThatWereDraftedForGoOnBesideIt) {
  EngineConfig config = ConfigOf(0);
  config.model.memory = 1;  // texts that repeat, so that n-grams are found
  config.draft = DraftMode::kNgram;
  EngineHarness harness(config);
  const auto constraint = std::make_shared<ParityConstraint>(kVocab, kVocab);
  Request request = Greedy(Prompt(10), 30);
  request.constraint = constraint;
  harness.Submit(request);
  harness.Submit(Greedy(Prompt(12, 3), 60));
  harness.RunToEnd();
  EXPECT_TRUE(Follows(*constraint, harness.outputs(0)[0].tokens));
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(Prompt(12, 3), 60));
  EXPECT_GT(harness.engine().Metrics().drafted_tokens, 0);
}

// They do not draft, but each takes a row of the step that others fill with drafts.
TEST(Constraint, SamplesBesideThoseThatDraftHaveTheirRows) {
  EngineHarness harness(
      {.model = {.vocab_size = 4, .memory = 1}, .max_running = 4, .max_batch_tokens = 12, .draft = DraftMode::kNgram});
  Request constrained = Greedy({1, 2, 3}, 60);
  constrained.constraint = std::make_shared<ParityConstraint>(4, 4);
  harness.Submit(constrained);
  for (int32_t i = 0; i < 3; ++i) harness.Submit(Greedy({i, 1, 2, 3}, 60));
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(0)[0].tokens.size(), 60u);
  EXPECT_GT(harness.engine().Metrics().drafted_tokens, 60);
  EXPECT_EQ(harness.model().largest_batch(), 12);
}

}  // namespace
}  // namespace coppice
