// Log-probabilities that stay with cached tokens: what is asked for again is found and not computed, and is what was computed.
#include "engine/kept_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

struct Asked {
  StreamEvent prompt;  // the event of the prompt
  bool done = false;
};

// A request for log-probabilities of a prompt and nothing else.
Request Scored(std::vector<int32_t> prompt) {
  Request request = Greedy(std::move(prompt), 0);
  request.prompt_logprobs = true;
  return request;
}

class KeptScoresTest : public ::testing::Test {
 protected:
  explicit KeptScoresTest(const EngineConfig& config = {.model = {.num_pages = 128}, .max_batch_tokens = 64}) : harness_(config) {}

  std::shared_ptr<Asked> Submit(Request request) {
    auto asked = std::make_shared<Asked>();
    request.on_event = [asked](const StreamEvent& event) {
      if (event.index < 0) asked->prompt = event;
      asked->done |= event.request_done;
    };
    EXPECT_TRUE(harness_.engine().Submit(std::move(request)).ok());
    return asked;
  }
  // Runs what was submitted, and returns the tokens that the model computed.
  int64_t Run() {
    const int64_t before = harness_.model().tokens_computed();
    harness_.RunToEnd();
    return harness_.model().tokens_computed() - before;
  }
  StreamEvent Ask(Request request, int64_t computed) {
    const std::shared_ptr<Asked> asked = Submit(std::move(request));
    EXPECT_EQ(Run(), computed);
    EXPECT_TRUE(asked->done);
    return asked->prompt;
  }
  double LogprobAfter(const std::vector<int32_t>& before, int32_t token, double temperature = 1) {
    const std::vector<float> logits = harness_.model().LogitsAfter(before);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit / temperature);
    return logits[token] / temperature - std::log(sum);
  }
  // The event's scores of a prompt are the model's.
  void ExpectOfModel(const StreamEvent& event, const std::vector<int32_t>& prompt, double temperature = 1) {
    ASSERT_EQ(event.prompt_logprobs.size(), prompt.size());
    for (size_t i = 0; i < prompt.size(); ++i) {
      if (!event.prompt_logprobs[i]) continue;
      const std::vector<int32_t> before(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NEAR(*event.prompt_logprobs[i], LogprobAfter(before, prompt[i], temperature), 1e-5) << i;
      const std::vector<float> logits = harness_.model().LogitsAfter(before);
      if (!event.prompt_ranks.empty()) {
        int32_t rank = 1;
        for (int32_t t = 0; t < std::ssize(logits); ++t)
          rank += logits[t] > logits[prompt[i]] || (logits[t] == logits[prompt[i]] && t < prompt[i]);
        EXPECT_EQ(event.prompt_ranks[i], rank) << i;
      }
      if (event.prompt_top_logprobs.empty()) continue;
      ASSERT_FALSE(event.prompt_top_logprobs[i].empty());
      const auto most = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
      EXPECT_EQ(event.prompt_top_logprobs[i][0].token, most) << i;
      EXPECT_NEAR(event.prompt_top_logprobs[i][0].logprob, LogprobAfter(before, most, temperature), 1e-5) << i;
    }
  }

  EngineHarness harness_;
};

TEST_F(KeptScoresTest, WhatIsAskedForAgainIsFound) {
  const std::vector<int32_t> prompt = Prompt(40);
  Request request = Scored(prompt);
  request.ranks = true;
  request.top_logprobs = 1;
  const StreamEvent first = Ask(request, 40);
  ExpectOfModel(first, prompt);
  const StreamEvent again = Ask(request, 1);  // the last token, whose logits a sample would need
  EXPECT_EQ(again.cached_tokens, 39);
  EXPECT_EQ(again.prompt_logprobs, first.prompt_logprobs);
  EXPECT_EQ(again.prompt_ranks, first.prompt_ranks);
  EXPECT_EQ(again.prompt_top_logprobs, first.prompt_top_logprobs);
  // Less is found too: without alternatives, and with a sample.
  EXPECT_EQ(Ask(Scored(prompt), 1).prompt_logprobs, first.prompt_logprobs);
  request.max_tokens = 3;
  EXPECT_EQ(Ask(request, 1 + 2).prompt_logprobs, first.prompt_logprobs);
  // From a place on.
  request.prompt_logprobs_begin = 20;
  EXPECT_EQ(Ask(request, 1 + 2).prompt_logprobs[20], first.prompt_logprobs[20]);
}

TEST_F(KeptScoresTest, WhatWasNotAskedForIsComputed) {
  const std::vector<int32_t> prompt = Prompt(40);
  Ask(Greedy(prompt, 0), 40);
  Request request = Scored(prompt);
  const StreamEvent plain = Ask(request, 40);  // the KV was there, and no log-probabilities
  ExpectOfModel(plain, prompt);
  request.ranks = true;
  ExpectOfModel(Ask(request, 40), prompt);
  EXPECT_EQ(Ask(request, 1).prompt_logprobs, plain.prompt_logprobs);
  request.top_logprobs = 2;  // more than is kept
  ExpectOfModel(Ask(request, 40), prompt);
  Ask(request, 40);
  // Beyond a place of which they are kept.
  Request part = Scored(Prompt(40, /*seed=*/1));
  part.prompt_logprobs_begin = 30;
  Ask(part, 40);
  part.prompt_logprobs_begin = 25;
  ExpectOfModel(Ask(part, 40 - 24), part.prompt_ids);
  part.prompt_logprobs_begin = 0;
  ExpectOfModel(Ask(part, 40), part.prompt_ids);
  Ask(part, 1);
}

TEST_F(KeptScoresTest, TheyAreOfOneTemperature) {
  const std::vector<int32_t> prompt = Prompt(40);
  Request request = Scored(prompt);
  request.sampling.temperature = 0.5f;
  Ask(request, 40);
  Ask(request, 1);  // the model's own, whatever the temperature
  request.sampling.logprobs_mode = LogprobsMode::kProcessed;
  const StreamEvent processed = Ask(request, 40);
  ExpectOfModel(processed, prompt, 0.5);
  EXPECT_EQ(Ask(request, 1).prompt_logprobs, processed.prompt_logprobs);
  request.sampling.temperature = 1;
  ExpectOfModel(Ask(request, 40), prompt);  // the last ones are kept
  Ask(Scored(prompt), 1);
}

// As lm-eval asks: a request for each option, all together.
TEST_F(KeptScoresTest, AContextIsComputedOnceForAllOptions) {
  const std::vector<int32_t> context = Prompt(100);
  for (int32_t question = 0; question < 3; ++question) {
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::shared_ptr<Asked>> asked;
    for (int32_t option = 0; option < 4; ++option) {
      std::vector<int32_t> prompt = context;
      const std::vector<int32_t> of_question = Prompt(10, 10 + question), of_option = {option, 5, option + question};
      prompt.insert(prompt.end(), of_question.begin(), of_question.end());
      prompt.insert(prompt.end(), of_option.begin(), of_option.end());
      Request request = Scored(prompt);
      request.top_logprobs = 1;
      asked.push_back(Submit(std::move(request)));
      prompts.push_back(std::move(prompt));
    }
    // The token before what differs is computed again: it says how probable that is.
    const int64_t of_first = question == 0 ? 113 : 1 + 13;
    EXPECT_EQ(Run(), of_first + 3 * (1 + 3));
    for (size_t i = 0; i < prompts.size(); ++i) ExpectOfModel(asked[i]->prompt, prompts[i]);
  }
}

TEST_F(KeptScoresTest, ScoresFindThoseOfTheirOwnPrompt) {
  const std::vector<int32_t> prompt = Prompt(40);
  Request request = Greedy(prompt, 0);
  for (int32_t position = 29; position < 39; ++position)
    request.prompt_scores.push_back({.position = position, .token = prompt[position + 1]});
  const StreamEvent first = Ask(request, 40);
  const StreamEvent again = Ask(request, 1);
  ASSERT_EQ(again.prompt_scores.size(), 10u);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(again.prompt_scores[i].logprob, first.prompt_scores[i].logprob);
    EXPECT_EQ(again.prompt_scores[i].greedy, first.prompt_scores[i].greedy);
  }
  // Another token in a place is not in the cache.
  request.prompt_scores.insert(request.prompt_scores.begin() + 5, {.position = 34, .token = (prompt[35] + 1) % 64});
  std::ranges::stable_sort(request.prompt_scores, {}, &PromptScore::position);
  const StreamEvent other = Ask(request, 40 - 34);
  const std::vector<int32_t> before(prompt.begin(), prompt.begin() + 35);
  const auto place =
      std::ranges::find_if(request.prompt_scores,
                           [&](const PromptScore& score) { return score.position == 34 && score.token != prompt[35]; }) -
      request.prompt_scores.begin();
  EXPECT_NEAR(other.prompt_scores[place].logprob, LogprobAfter(before, (prompt[35] + 1) % 64), 1e-5);
  // A prompt's log-probabilities find them too.
  Request whole = Scored(prompt);
  whole.prompt_logprobs_begin = 30;
  EXPECT_EQ(*Ask(whole, 1).prompt_logprobs[30], first.prompt_scores[0].logprob);
}

TEST_F(KeptScoresTest, TheyGoWithTheirTokensAndStayWithTheirSalt) {
  const std::vector<int32_t> prompt = Prompt(40);
  Request request = Scored(prompt);
  Ask(request, 40);
  request.cache_salt = "another";
  Ask(request, 40);
  Ask(request, 1);
  ASSERT_TRUE(harness_.engine().DropCache().ok());
  Ask(request, 40);
  const float seed = 11;
  const std::vector<WeightTensor> weights = {
      {.name = std::string(FakeRunner::kSeedTensor), .dtype = DType::kF32, .shape = {1}, .data = &seed}};
  ASSERT_TRUE(harness_.engine().UpdateWeights(weights, {}).ok());
  ExpectOfModel(Ask(request, 40), prompt);  // of the new weights
  Ask(request, 1);
}

// Texts of a small alphabet, so that they have much in common, a cache that is too small for all of them, chunks, several at a
// time.
class RandomScoresTest : public KeptScoresTest, public ::testing::WithParamInterface<int32_t> {
 protected:
  RandomScoresTest()
      : KeptScoresTest({.model = {.num_pages = 40, .page_size = 4}, .max_batch_tokens = 16, .steps_ahead = GetParam()}) {}

  Request RandomRequest() {
    std::vector<int32_t> prompt(2 + random_() % 30);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random_() % 8 == 0);
    Request request = Scored(prompt);
    request.max_tokens = static_cast<int32_t>(random_() % 3);
    request.ranks = random_() % 3 == 0;
    request.prompt_top_logprobs = static_cast<int32_t>(random_() % 5 == 0 ? 2 : random_() % 2);
    if (random_() % 4 == 0) request.prompt_logprobs_begin = static_cast<int32_t>(random_() % prompt.size());
    if (random_() % 6 == 0) {
      request.sampling.temperature = 0.5f;
      request.sampling.logprobs_mode = LogprobsMode::kProcessed;
    }
    return request;
  }

  std::mt19937 random_{5};
};

TEST_P(RandomScoresTest, AreThoseOfTheModel) {
  int64_t computed = 0, asked_for = 0;
  for (int32_t round = 0; round < 150; ++round) {
    std::vector<std::pair<Request, std::shared_ptr<Asked>>> all;
    for (size_t count = 1 + random_() % 6; all.size() < count;) {
      const Request request = RandomRequest();
      asked_for += std::ssize(request.prompt_ids);
      all.emplace_back(request, Submit(request));
    }
    computed += Run();
    for (const auto& [request, asked] : all) {
      ASSERT_TRUE(asked->done);
      ExpectOfModel(asked->prompt, request.prompt_ids, request.sampling.temperature == 0.5f ? 0.5 : 1.0);
      for (size_t i = std::max(1, request.prompt_logprobs_begin); i < request.prompt_ids.size(); ++i)
        ASSERT_TRUE(asked->prompt.prompt_logprobs[i].has_value());
      ASSERT_FALSE(HasFailure()) << "round " << round;
    }
  }
  EXPECT_LT(computed, asked_for);
}

INSTANTIATE_TEST_SUITE_P(StepsAhead, RandomScoresTest, ::testing::Values(0, 1));

}  // namespace
}  // namespace coppice
