// Constrained samples: each says what the most probable of the allowed tokens are, whatever runs beside it, and ends where its
// constraint says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_harness.h"
#include "engine/fake_constraint.h"

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

}  // namespace
}  // namespace coppice
