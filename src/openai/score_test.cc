// Scores of continuations: the tree of their tokens, the body, and what an engine with a fake model makes of them.
#include "openai/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "engine/testing/engine_harness.h"
#include "openai/answer_size.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(ScoreTree, NothingIsComputedOrScoredTwice) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<ScoredSequence> sequences(1 + random() % 12);
    for (ScoredSequence& sequence : sequences) {
      sequence.tokens.resize(2 + random() % 8);
      for (int32_t& token : sequence.tokens) token = static_cast<int32_t>(random() % 3);
      sequence.begin = 1 + static_cast<int32_t>(random() % (sequence.tokens.size() - 1));
    }
    const ScoreTree tree = MakeScoreTree(sequences);
    std::set<std::vector<int32_t>> paths, rows;  // with the scored token, and up to the row before it
    std::vector<std::vector<int32_t>> path_of(tree.num_scores);
    int32_t num_rows = 0;
    for (const ScoreTree::Part& part : tree.parts) {
      ASSERT_EQ(part.scores.size(), part.ids.size());
      ASSERT_EQ(part.scores.back().position + 1, std::ssize(part.prompt_ids));  // no needless token
      for (size_t i = 0; i < part.scores.size(); ++i) {
        const auto& [position, token] = part.scores[i];
        std::vector<int32_t> path(part.prompt_ids.begin(), part.prompt_ids.begin() + position + 1);
        num_rows += i == 0 || position != part.scores[i - 1].position;
        if (i > 0) {
          ASSERT_LE(part.scores[i - 1].position, position);
        }
        rows.insert(path);
        path.push_back(token);
        EXPECT_TRUE(paths.insert(path).second);
        path_of[part.ids[i]] = path;
      }
    }
    EXPECT_EQ(std::ssize(rows), num_rows);
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto& [tokens, begin] = sequences[s];
      ASSERT_EQ(std::ssize(tree.score_ids[s]), std::ssize(tokens) - begin);
      for (size_t i = 0; i < tree.score_ids[s].size(); ++i) {
        const std::vector<int32_t> expected(tokens.begin(), tokens.begin() + begin + static_cast<std::ptrdiff_t>(i) + 1);
        EXPECT_EQ(path_of[tree.score_ids[s][i]], expected);
      }
    }
  }
}

class ScoreTest : public ::testing::Test {
 protected:
  ScoreTest()
      : harness_({.model = {.max_position = 128, .num_pages = 512}, .max_running = 64, .max_batch_tokens = 128, .max_waiting = 64}),
        parser_(nullptr, 128, NotFound("no tokenizer"), 64) {}

  ScoreRequest Parsed(const json& body) {
    BodyError error;
    const std::optional<ScoreRequest> request = ParseScore(body, parser_, &error);
    EXPECT_TRUE(request) << error.status.message();
    return request.value();
  }
  std::pair<std::string, std::string> Refused(const json& body) {
    BodyError error;
    EXPECT_FALSE(ParseScore(body, parser_, &error));
    return {error.param, error.status.message()};
  }
  ScoreCall::Outcome Run(const ScoreRequest& request) {
    std::optional<ScoreCall::Outcome> outcome;
    (void)ScoreCall::Start(&harness_.engine(), request, [&](ScoreCall::Outcome said) { outcome = std::move(said); });
    harness_.RunToEnd();
    return outcome.value();
  }
  double Expected(std::vector<int32_t> tokens, int32_t next) {
    const std::vector<float> logits = harness_.model().LogitsAfter(tokens);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    return logits[next] - std::log(sum);
  }

  EngineHarness harness_;
  OpenAiRequestParser parser_;
};

TEST_F(ScoreTest, ScoresAreThoseOfTheModelCachedOrNot) {
  const std::vector<int32_t> prompt = Prompt(50);
  const std::vector<std::vector<int32_t>> continuations = {{1}, {1, 2, 3}, {2, 2}, {1, 2, 4, 5}, {1}, {9}};
  const auto request = std::make_shared<const ScoreRequest>(
      Parsed({{"prompt", prompt}, {"continuations", continuations}, {"return_token_ids", true}}));
  for (const int32_t cached : {0, 49}) {
    const int64_t steps = harness_.engine().Metrics().steps;
    ScoreCall::Outcome outcome = Run(*request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(harness_.engine().Metrics().steps - steps, 2);  // the prompt, and all branches
    EXPECT_GE(outcome.usage.cached, cached);
    EXPECT_EQ(outcome.usage.prompt, 50 + 1 + 3 + 2 + 4 + 1 + 1);
    const std::string text = TextOf(ScoreBody(request, std::move(outcome), {.id = "7", .model = "m"}).get());
    const json body = json::parse(text);
    EXPECT_EQ(body["id"], "score-7");
    EXPECT_EQ(body["usage"]["prompt_tokens"], 50 + 1 + 3 + 2 + 4 + 1 + 1);
    EXPECT_GT(AnswerBytes(*request), static_cast<double>(text.size()));
    for (size_t i = 0; i < continuations.size(); ++i) {
      std::vector<int32_t> tokens = prompt;
      double sum = 0;
      bool greedy = true;
      for (const int32_t token : continuations[i]) {
        sum += Expected(tokens, token);
        greedy &= harness_.model().GreedyAfter(tokens) == token;
        tokens.push_back(token);
      }
      const json& entry = body["scores"][i];
      EXPECT_NEAR(entry["logprob"], sum, 1e-4) << i;
      EXPECT_EQ(entry["greedy"], greedy);
      EXPECT_EQ(entry["token_ids"], continuations[i]);
      EXPECT_EQ(entry["num_tokens"], continuations[i].size());
    }
  }
}

TEST_F(ScoreTest, BranchesReadThePromptTogether) {
  std::vector<std::vector<int32_t>> continuations;
  for (int32_t i = 0; i < 20; ++i) continuations.push_back({i, 3, 5});
  (void)Run(Parsed({{"prompt", Prompt(90)}, {"continuations", continuations}}));
  const StepMetrics step = harness_.engine().Metrics().last_step;
  EXPECT_EQ(step.prefill_rows, 19 * 2);  // the first one went with the prompt; last tokens are not computed
  EXPECT_EQ(step.grouped_rows, 19 * 2);
  EXPECT_LT(step.kv_bytes_read * 5, step.kv_bytes_read_unshared);
}

TEST_F(ScoreTest, ErrorsAndCancellation) {
  // The prompt goes through, the branches do not.
  std::vector<std::vector<int32_t>> many;
  for (int32_t i = 0; i < 64; ++i) many.push_back({i, 1}), many.push_back({i, 2, i});
  ScoreCall::Outcome outcome = Run(Parsed({{"prompt", {1, 2}}, {"continuations", many}}));
  EXPECT_TRUE(outcome.refused || outcome.status.ok());

  const ScoreRequest request = Parsed({{"prompt", Prompt(20)}, {"continuations", {{1, 2}, {2, 3}}}});
  harness_.model().FailNext(Internal("lost"));
  int ends = 0;
  const auto on_end = [&](ScoreCall::Outcome said) {
    outcome = std::move(said);
    ++ends;
  };
  auto call = ScoreCall::Start(&harness_.engine(), request, on_end);
  EXPECT_FALSE(harness_.engine().Step().ok());
  EXPECT_EQ(ends, 1);
  EXPECT_THAT(outcome.status.message(), HasSubstr("lost"));

  call = ScoreCall::Start(&harness_.engine(), request, on_end);
  call->Cancel();
  harness_.RunToEnd();
  EXPECT_EQ(ends, 2);
  EXPECT_TRUE(outcome.cancelled);
  EXPECT_EQ(harness_.cache().usage().pages_in_use, 0);

  outcome = Run(Parsed({{"prompt", Prompt(128)}, {"continuations", {{1, 2}}}}));
  EXPECT_TRUE(outcome.refused);
  EXPECT_THAT(outcome.status.message(), HasSubstr("context length is 128"));
}

TEST_F(ScoreTest, AScoreThatAPauseEndsIsAnError) {
  const ScoreRequest request = Parsed({{"prompt", Prompt(90)}, {"continuations", {{1, 2}, {2, 3}}}});
  const ScoreRequest other = Parsed({{"prompt", Prompt(90, 7)}, {"continuations", {{1, 2}}}});
  std::vector<ScoreCall::Outcome> outcomes;
  for (const ScoreRequest* const one : {&request, &other})
    (void)ScoreCall::Start(&harness_.engine(), *one, [&](ScoreCall::Outcome said) { outcomes.push_back(std::move(said)); });
  harness_.Step();  // the first prompt, and a part of the second
  ASSERT_TRUE(harness_.engine().Pause({.mode = PauseMode::kAbort}).ok());
  ASSERT_TRUE(harness_.engine().Resume().ok());
  harness_.RunToEnd();
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(outcomes[0].cancelled);
  EXPECT_TRUE(outcomes[1].status.ok()) << outcomes[1].status.message();
}

TEST_F(ScoreTest, WhatIsNoScoreRequest) {
  using Error = std::pair<std::string, std::string>;
  const json prompt = {1, 2};
  const auto refused = [&](const json& body, const char* param, const char* message) {
    const Error error = Refused(body);
    EXPECT_EQ(error.first, param) << body;
    EXPECT_THAT(error.second, HasSubstr(message));
  };
  refused({{"prompt", prompt}}, "continuations", "missing");
  refused({{"prompt", prompt}, {"continuations", json::array()}}, "continuations", "1 to");
  refused({{"prompt", prompt}, {"continuations", "ab"}}, "continuations", "expected a list");
  refused({{"prompt", prompt}, {"continuations", {7}}}, "continuations", "a continuation is 7");
  refused({{"prompt", prompt}, {"continuations", {"text"}}}, "continuations", "token ids, as the prompt is");
  refused({{"continuations", {{1}}}}, "prompt", "missing");
  refused({{"prompt", json::array({prompt, prompt})}, {"continuations", {{1}}}}, "prompt", "list of 2 prompts");
  refused({{"prompt", prompt}, {"continuations", {{1}}}, {"temperature", 1}}, "temperature", "not supported");
  refused({{"prompt", prompt}, {"continuations", {{1}}}, {"max_tokens", 1}}, "max_tokens", "not supported");
  refused({{"prompt", prompt}, {"continuations", {{1}}}, {"prefix", "a"}}, "prefix", "no prefix");
  const json long_prompt = std::vector<int32_t>(1 << 18, 1), many = std::vector<std::vector<int32_t>>(17, {1});
  refused({{"prompt", long_prompt}, {"continuations", many}}, "continuations", "send several");
  refused(json::array(), "body", "expected an object");
}

}  // namespace
}  // namespace coppice::openai
