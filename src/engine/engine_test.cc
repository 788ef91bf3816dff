// The engine around a model whose tokens depend on the whole history read back through the page rows: continuous batching, sharing,
// cancellation, preemption, endings. Every test compares with what the tokens alone say.
#include "coppice/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;

// ------------------------------------------------------------------------------------------------------------------- the main job

TEST(Engine, GreedyTokensAreThoseOfTheHistoryInEveryModeAndPageSize) {
  for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kOneLevel, SharingMode::kStore, SharingMode::kNone}) {
    for (const int32_t page_size : {1, 16, 64}) {
      for (const int32_t length : {1, page_size - 1, page_size, page_size + 1, 3 * page_size + 5}) {
        if (length < 1) continue;
        for (const int32_t n : {1, 6}) {
          SCOPED_TRACE(std::string(Name(sharing)) + ", page " + std::to_string(page_size) + ", prompt " + std::to_string(length));
          EngineHarness harness({.model = {.num_pages = 2048 / page_size, .page_size = page_size}, .sharing = sharing});
          harness.Submit(Greedy(Prompt(length), 20, n));
          harness.RunToEnd();
          const std::vector<int32_t> expected = harness.GreedyAfter(Prompt(length), 20);
          for (const Output& output : harness.outputs(0)) {
            EXPECT_EQ(output.tokens, expected);
            EXPECT_EQ(output.reason, FinishReason::kLength);
          }
          EXPECT_TRUE(harness.done(0));
          EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
        }
      }
    }
  }
}

TEST(Engine, APromptIsComputedOnceForAllSamples) {
  EngineHarness harness({.model = {.num_pages = 512}, .max_running = 64, .max_batch_tokens = 64});
  Request request{.prompt_ids = Prompt(100), .n = 64, .max_tokens = 5};
  harness.Submit(request);
  harness.RunToEnd();
  EXPECT_EQ(harness.model().tokens_computed(), 100 + 64 * 4);  // the last token of a sample is never fed
  const EngineMetrics metrics = harness.engine().Metrics();
  EXPECT_EQ(metrics.prefilled_tokens, 100);
  EXPECT_EQ(metrics.generated_tokens, 64 * 5);
  EXPECT_EQ(metrics.decode_steps, 4);
  // 6 whole pages of the prompt, and for each sample one page that continues (or copies) the seventh.
  EXPECT_EQ(metrics.peak_pages_used, 6 + 64);
  EXPECT_EQ(metrics.kv_bytes_stored, (6 + 64) * 16 * 8);
  EXPECT_EQ(metrics.kv_bytes_stored_unshared, 64 * 7 * 16 * 8);
  EXPECT_EQ(metrics.kv_page_rounding_bytes, metrics.kv_bytes_stored - (100 + 64 * 4) * 8);
}

TEST(Engine, SamplesDependOnSeedAndIndexAlone) {
  const auto run = [](int32_t max_running, int32_t budget, bool crowd, SharingMode sharing) {
    EngineHarness harness(
        {.model = {.num_pages = 200}, .max_running = max_running, .max_batch_tokens = budget, .sharing = sharing});
    if (crowd) harness.Submit({.prompt_ids = Prompt(37, 5), .n = 3, .max_tokens = 9});
    Request request{.prompt_ids = Prompt(21), .n = 7, .max_tokens = 12};
    request.sampling.seed = 42;
    request.sampling.temperature = 0.8f;
    harness.Submit(request);
    harness.RunToEnd();
    std::vector<std::vector<int32_t>> tokens;
    for (const Output& output : harness.outputs(crowd ? 1 : 0)) tokens.push_back(output.tokens);
    return tokens;
  };
  const auto expected = run(8, 32, false, SharingMode::kTree);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(run(8, 8, true, SharingMode::kTree), expected);
  EXPECT_EQ(run(3, 5, true, SharingMode::kTree), expected);  // fewer slots than samples: the rest wait
  EXPECT_EQ(run(8, 32, true, SharingMode::kNone), expected);
}

TEST(Engine, MoreSamplesThanSlotsAllFinish) {
  EngineHarness harness({.model = {.num_pages = 64}, .max_running = 4, .max_batch_tokens = 16});
  harness.Submit(Greedy(Prompt(33), 6, 50));
  harness.RunToEnd();
  const std::vector<int32_t> expected = harness.GreedyAfter(Prompt(33), 6);
  for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.tokens, expected);
}

// Penalties, bias and min_tokens reach the sampler with the right history, after a preemption too.
TEST(Engine, GreedyTextUnderEveryLogitParameterIsThatOfItsDefinition) {
  EngineHarness harness({.model = {.num_pages = 20, .page_size = 4}, .max_running = 4});
  Request request = Greedy({}, 30);
  request.sampling.presence_penalty = 0.8f;
  request.sampling.frequency_penalty = 0.5f;
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.logit_bias = {{9, 2.0f}, {17, -INFINITY}};
  request.stop_token_ids = {21};
  request.min_tokens = 30;
  request.n = 2;
  for (int32_t slot = 0; slot < 3; ++slot) {
    request.prompt_ids = Prompt(14, slot);
    harness.Submit(request);
  }
  harness.RunToEnd();
  EXPECT_GT(harness.engine().Metrics().preemptions, 0);
  for (int32_t slot = 0; slot < 3; ++slot) {
    std::vector<int32_t> text = Prompt(14, slot);
    std::vector<int32_t> expected;
    for (int i = 0; i < 30; ++i) {
      std::vector<float> logits = harness.model().LogitsAfter(text);
      for (int32_t v = 0; v < 64; ++v) {
        const auto count = static_cast<float>(std::count(expected.begin(), expected.end(), v));
        if (std::find(text.begin(), text.end(), v) != text.end()) logits[v] *= logits[v] > 0 ? 1 / 1.3f : 1.3f;
        logits[v] -= count * 0.5f + (count > 0 ? 0.8f : 0.0f);
        if (v == 9) logits[v] += 2;
        if (v == 17 || v == 21) logits[v] = -INFINITY;
      }
      text.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      expected.push_back(text.back());
    }
    for (const Output& output : harness.outputs(slot)) EXPECT_EQ(output.tokens, expected);
  }
}

TEST(Engine, MinTokensLetsStopStringsPass) {
  EngineConfig config{.texts = Letters(64)};
  EngineHarness plain(config);
  plain.Submit(Greedy(Prompt(9), 12));
  plain.RunToEnd();
  const std::string text = plain.outputs(0)[0].text;
  Request request = Greedy(Prompt(9), 12);
  request.stop = {text.substr(2, 2)};
  request.min_tokens = 8;
  EngineHarness harness(config);
  harness.Submit(request);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(0)[0].text, text);  // the stop string is text here, and does not occur again
  EXPECT_EQ(harness.outputs(0)[0].reason, FinishReason::kLength);
}

TEST(Engine, LogprobsAreThoseOfTheModel) {
  EngineHarness harness({});
  Request request = Greedy(Prompt(10), 3);
  request.prompt_logprobs = true;
  request.sampling.logit_bias = {{7, 100.0f}};  // steers the choice, not the log-probability
  harness.Submit(request);
  harness.RunToEnd();
  const auto logprob_after = [&](std::vector<int32_t> tokens, int32_t next) {
    const std::vector<float> logits = harness.model().LogitsAfter(tokens);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    return logits[next] - std::log(sum);
  };
  std::vector<int32_t> tokens = Prompt(10);
  ASSERT_EQ(harness.prompt_logprobs(0).size(), 10u);
  EXPECT_FALSE(harness.prompt_logprobs(0)[0].has_value());
  for (int i = 1; i < 10; ++i) {
    const std::vector<int32_t> before(tokens.begin(), tokens.begin() + i);
    EXPECT_NEAR(*harness.prompt_logprobs(0)[i], logprob_after(before, tokens[i]), 1e-5) << i;
  }
  const Output& output = harness.outputs(0)[0];
  EXPECT_EQ(output.tokens, (std::vector<int32_t>{7, 7, 7}));
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    EXPECT_NEAR(output.logprobs[i], logprob_after(tokens, output.tokens[i]), 1e-5);
    tokens.push_back(output.tokens[i]);
  }
}

TEST(Engine, TopLogprobsAreTheMostProbableTokensOfEachPlace) {
  for (const DraftMode draft : {DraftMode::kNone, DraftMode::kNgram}) {
    EngineHarness harness({.model = {.vocab_size = 8, .num_pages = 128, .memory = 2}, .draft = draft});
    Request request{.prompt_ids = {1, 2, 1, 2, 1}, .n = 3, .max_tokens = 20, .top_logprobs = 11};
    request.sampling.logit_bias = {{3, 2.0f}};  // steers the choice, not the log-probabilities
    std::vector<std::vector<int32_t>> texts(3, request.prompt_ids);
    int32_t checked = 0;
    request.on_event = [&](const StreamEvent& event) {
      ASSERT_EQ(event.top_logprobs.size(), event.token_ids.size());
      const std::vector<float> logits = harness.model().LogitsAfter(texts[event.index]);
      std::vector<int32_t> order = {0, 1, 2, 3, 4, 5, 6, 7};
      std::ranges::stable_sort(order, std::greater<>(), [&](int32_t token) { return logits[token]; });
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      ASSERT_EQ(event.top_logprobs[0].size(), 8u);  // no more than there are
      for (size_t i = 0; i < 8; ++i) {
        const TokenLogprob top = event.top_logprobs[0][i];
        EXPECT_EQ(top.token, order[i]);
        EXPECT_NEAR(top.logprob, logits[top.token] - std::log(sum), 1e-5);
        if (top.token == event.token_ids[0]) {
          EXPECT_EQ(top.logprob, event.logprobs[0]);
        }
      }
      texts[event.index].push_back(event.token_ids[0]);
      ++checked;
    };
    ASSERT_TRUE(harness.engine().Submit(request).ok());
    harness.RunToEnd();
    EXPECT_EQ(checked, 3 * 20);
    EXPECT_EQ(harness.engine().Metrics().accepted_draft_tokens > 0, draft != DraftMode::kNone);
  }
}

TEST(Engine, RanksAreThoseOfEachPlaceOfPromptAndOutput) {
  for (const DraftMode draft : {DraftMode::kNone, DraftMode::kNgram}) {
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      EngineHarness harness({.model = {.vocab_size = 8, .num_pages = 128, .memory = 2}, .draft = draft});
      Request request{.prompt_ids = {1, 2, 1, 2, 1, 2}, .n = 2, .max_tokens = 20};
      request.sampling.logit_bias = {{3, 4.0f}};
      request.sampling.logprobs_mode = mode;
      request.sampling.temperature = 0.5f;
      request.ranks = request.prompt_logprobs = true;
      request.top_logprobs = 1;
      request.prompt_top_logprobs = 3;
      std::vector<std::vector<int32_t>> texts(2, request.prompt_ids);
      const auto rank_after = [&](const std::vector<int32_t>& text, int32_t token, float bias) {
        std::vector<float> logits = harness.model().LogitsAfter(text);
        logits[3] += bias;
        int32_t rank = 1;
        for (int32_t i = 0; i < 8; ++i) rank += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
        return rank;
      };
      int32_t checked = 0;
      request.on_event = [&](const StreamEvent& event) {
        if (event.index < 0) {
          ASSERT_EQ(event.prompt_ranks.size(), 6u);
          EXPECT_EQ(event.prompt_ranks[0], 0);
          for (size_t i = 1; i < 6; ++i) {
            const std::vector<int32_t> before(texts[0].begin(), texts[0].begin() + static_cast<std::ptrdiff_t>(i));
            EXPECT_EQ(event.prompt_ranks[i], rank_after(before, texts[0][i], 0)) << i;
            ASSERT_EQ(event.prompt_top_logprobs[i].size(), 3u);
            const std::vector<float> logits = harness.model().LogitsAfter(before);
            const double temperature = mode == LogprobsMode::kProcessed ? 0.5 : 1.0;
            double sum = 0;
            for (const float logit : logits) sum += std::exp(logit / temperature);
            EXPECT_NEAR(*event.prompt_logprobs[i], logits[texts[0][i]] / temperature - std::log(sum), 1e-5);
            if (event.prompt_ranks[i] <= 3) {
              EXPECT_EQ(event.prompt_top_logprobs[i][event.prompt_ranks[i] - 1].token, texts[0][i]);
            }
          }
          return;
        }
        ASSERT_EQ(event.ranks.size(), event.token_ids.size());
        const float bias = mode == LogprobsMode::kProcessed ? 4.0f : 0.0f;
        EXPECT_EQ(event.ranks[0], rank_after(texts[event.index], event.token_ids[0], bias));
        EXPECT_EQ(event.ranks[0] == 1, event.top_logprobs[0][0].token == event.token_ids[0]);
        texts[event.index].push_back(event.token_ids[0]);
        ++checked;
      };
      ASSERT_TRUE(harness.engine().Submit(request).ok());
      harness.RunToEnd();
      EXPECT_EQ(checked, 2 * 20);
    }
  }
  EngineHarness harness({});
  harness.Submit(Greedy(Prompt(5), 3));
  harness.RunToEnd();
  EXPECT_TRUE(harness.outputs(0)[0].ranks.empty());
}

double LogprobAfter(const EngineHarness& harness, const std::vector<int32_t>& tokens, int32_t next) {
  const std::vector<float> logits = const_cast<EngineHarness&>(harness).model().LogitsAfter(tokens);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return logits[next] - std::log(sum);
}

TEST(Engine, ScoresAreThoseOfTheModelAndOfNothingBeforeThem) {
  const std::vector<int32_t> prompt = Prompt(40);
  for (const int32_t batch : {7, 64}) {
    EngineHarness harness({.max_batch_tokens = batch});
    for (const bool cached : {false, true}) {
      const int64_t computed = harness.engine().Metrics().prefilled_tokens;
      Request request{.prompt_ids = prompt, .max_tokens = 0};
      for (const int32_t position : {30, 34, 39}) {
        const std::vector<int32_t> before(prompt.begin(), prompt.begin() + position + 1);
        request.prompt_scores.push_back({.position = position, .token = harness.model().GreedyAfter(before)});
        for (const int32_t token : {5, 60}) request.prompt_scores.push_back({.position = position, .token = token});
      }
      const std::vector<PromptScore> wanted = request.prompt_scores;
      std::vector<StreamEvent> events;
      request.on_event = [&](const StreamEvent& event) { events.push_back(event); };
      ASSERT_TRUE(harness.engine().Submit(std::move(request)).ok());
      harness.RunToEnd();
      ASSERT_EQ(events.size(), 2u);
      ASSERT_EQ(events[0].prompt_scores.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        const std::vector<int32_t> before(prompt.begin(), prompt.begin() + wanted[i].position + 1);
        EXPECT_NEAR(events[0].prompt_scores[i].logprob, LogprobAfter(harness, before, wanted[i].token), 1e-5) << i;
        EXPECT_EQ(events[0].prompt_scores[i].greedy, wanted[i].token == harness.model().GreedyAfter(before)) << i;
      }
      EXPECT_EQ(events[0].cached_tokens, cached ? 30 : 0);
      EXPECT_EQ(harness.engine().Metrics().prefilled_tokens - computed, cached ? 10 : 40);
      EXPECT_EQ(events[1].finish_reason, FinishReason::kLength);
      EXPECT_TRUE(events[1].request_done);
    }
  }
}

TEST(Engine, WithoutTokensToGenerateAPromptIsComputedAndKept) {
  for (const int32_t steps_ahead : {0, 1}) {
    EngineHarness harness({.steps_ahead = steps_ahead});
    Request request = Greedy(Prompt(40), 0, 3);
    request.prompt_logprobs = true;
    request.top_logprobs = 2;
    request.stop = {};
    request.pin_prompt_as = "kept";
    std::vector<StreamEvent> events;
    request.on_event = [&](const StreamEvent& event) { events.push_back(event); };
    ASSERT_TRUE(harness.engine().Submit(std::move(request)).ok());
    harness.Submit(Greedy(Prompt(12, 1), 8));  // goes on meanwhile
    harness.RunToEnd();
    ASSERT_EQ(events.size(), 1u + 3);
    ASSERT_EQ(events[0].prompt_top_logprobs.size(), 40u);
    EXPECT_TRUE(events[0].prompt_top_logprobs[0].empty());
    for (int32_t i = 1; i < 40; ++i) {
      const std::vector<int32_t> all = Prompt(40), before(all.begin(), all.begin() + i);
      ASSERT_EQ(events[0].prompt_top_logprobs[i].size(), 2u);
      EXPECT_EQ(events[0].prompt_top_logprobs[i][0].token, harness.model().GreedyAfter(before));
      EXPECT_NEAR(events[0].prompt_top_logprobs[i][1].logprob,
                  LogprobAfter(harness, before, events[0].prompt_top_logprobs[i][1].token), 1e-5);
    }
    for (size_t i = 1; i < events.size(); ++i) {
      EXPECT_TRUE(events[i].token_ids.empty());
      EXPECT_EQ(events[i].finish_reason, FinishReason::kLength);
      EXPECT_EQ(events[i].request_done, i == 3);
    }
    EXPECT_EQ(harness.outputs(0)[0].tokens, harness.GreedyAfter(Prompt(12, 1), 8));
    EXPECT_EQ(harness.cache().usage().pages_in_use, 3);
    EXPECT_EQ(harness.engine().Metrics().generated_tokens, 8);
  }
}

// The order in which requests of one sample that do not run side by side begin.
std::vector<size_t> OrderOf(const std::vector<Request>& requests) {
  EngineHarness harness({.model = {.vocab_size = 64, .num_pages = 64}, .max_running = 1});
  std::vector<size_t> order;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request request = requests[i];
    request.on_event = [&order, i](const StreamEvent& event) {
      if (event.request_done) order.push_back(i);
    };
    EXPECT_TRUE(harness.engine().Submit(std::move(request)).ok());
  }
  harness.RunToEnd();
  return order;
}

TEST(Engine, NamesThatAskForMoreGetNoMoreOfTheirTurns) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) {
    requests.push_back(Greedy(Prompt(10, i), 2));
    requests.back().share_of = i < 6 ? "many" : "few";
  }
  // As if the two had come one by one in turn.
  EXPECT_EQ(OrderOf(requests), (std::vector<size_t>{0, 6, 1, 7, 2, 3, 4, 5}));
  for (Request& request : requests) request.share_of.clear();
  EXPECT_EQ(OrderOf(requests), (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Engine, SharesAreCountedInTokens) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) {
    requests.push_back(Greedy(Prompt(i < 2 ? 40 : 8, i), 2));  // 42 tokens, 10 tokens
    requests.back().share_of = i < 2 ? "long" : "short";
  }
  EXPECT_EQ(OrderOf(requests), (std::vector<size_t>{0, 2, 3, 4, 5, 6, 1, 7}));
}

// Steps until `few` is done, which comes while `many` runs; all others end as they should, too.
int32_t StepsOf(const EngineConfig& config, Request many, Request few, int64_t* preemptions) {
  EngineHarness harness(config);
  many.share_of = "many";
  few.share_of = "few";
  for (int32_t i = 0; i < 3; ++i) harness.Submit(many);
  harness.Step(10);
  const int64_t before = harness.engine().Metrics().preemptions;
  harness.Submit(few);
  int32_t steps = 0;
  while (!harness.done(3)) {
    harness.Step();
    ++steps;
  }
  *preemptions = harness.engine().Metrics().preemptions - before;
  harness.RunToEnd();
  for (size_t i = 0; i < 4; ++i) {
    const Request& request = i < 3 ? many : few;
    for (const Output& output : harness.outputs(i))
      EXPECT_EQ(output.tokens, harness.GreedyAfter(request.prompt_ids, request.max_tokens));
  }
  return steps;
}

TEST(Engine, ANameBeyondItsPartOfThePlacesGivesWay) {
  for (const int32_t steps_ahead : {0, 1}) {
    const EngineConfig config = {.model = {.max_position = 256, .num_pages = 256}, .max_running = 8, .steps_ahead = steps_ahead};
    int64_t preemptions = 0;
    EXPECT_LE(StepsOf(config, Greedy(Prompt(4), 200, 8), Greedy(Prompt(4, 1), 1), &preemptions), 3);
    EXPECT_EQ(preemptions, 1);
    EXPECT_LE(StepsOf(config, Greedy(Prompt(4), 200, 8), Greedy(Prompt(4, 1), 5, 4), &preemptions), 9);
    EXPECT_EQ(preemptions, 4) << "each has half, and what is taken is not given back before";
    EXPECT_GT(StepsOf(config, Greedy(Prompt(4), 200, 8), Greedy(Prompt(4, 1), 1, 8), &preemptions), 0);
    EXPECT_LE(preemptions, 8) << "half of the places at a time";
    Request urgent = Greedy(Prompt(4), 200, 8);
    urgent.priority = 1;
    EXPECT_GT(StepsOf(config, urgent, Greedy(Prompt(4, 1), 1), &preemptions), 180) << "priorities come before parts";
    EXPECT_EQ(preemptions, 0);
  }
}

TEST(Engine, ANameWithManySamplesGivesWayWherePagesAreShort) {
  const EngineConfig config = {.model = {.max_position = 128, .num_pages = 32, .page_size = 4}, .max_running = 8};
  int64_t preemptions = 0;
  EXPECT_LE(StepsOf(config, Greedy(Prompt(8), 60, 2), Greedy(Prompt(40, 1), 1), &preemptions), 10);
}

TEST(Engine, APromptInFlightLeavesAPartOfTheStepToOtherNames) {
  const EngineConfig config = {.model = {.max_position = 1024, .num_pages = 256}, .max_running = 8, .max_batch_tokens = 32};
  int64_t preemptions = 0;
  EXPECT_LE(StepsOf(config, Greedy(Prompt(900), 1), Greedy(Prompt(40, 1), 1), &preemptions), 4);  // 16 of 32 in a step
  EXPECT_EQ(preemptions, 0);
}

TEST(Engine, HigherPrioritiesComeFirst) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    requests.push_back(Greedy(Prompt(10, i), 2));
    requests.back().priority = i / 2;
  }
  requests[0].prompt_ids = requests[5].prompt_ids;  // what would be shared does not come before
  EXPECT_EQ(OrderOf(requests), (std::vector<size_t>{4, 5, 2, 3, 0, 1}));
}

TEST(Engine, ManyShortPromptsAreAdmittedInOneStep) {
  EngineHarness harness({.model = {.num_pages = 512}, .max_running = 128, .max_batch_tokens = 512});
  harness.Submit(Greedy(Prompt(100), 1));
  harness.RunToEnd();
  const int64_t steps = harness.engine().Metrics().steps;
  for (int32_t i = 0; i < 100; ++i) {
    Request request = Greedy(Prompt(100), 0);
    request.prompt_ids.insert(request.prompt_ids.end(), {i % 64, i / 64, 7});
    request.prompt_scores = {{.position = 100, .token = 1}, {.position = 102, .token = 2}};
    harness.Submit(request);
  }
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().steps, steps + 1);
  const StepMetrics step = harness.engine().Metrics().last_step;
  EXPECT_GE(step.prefill_rows, 300);
  EXPECT_EQ(step.grouped_rows, step.prefill_rows);  // the prompt is read once for all of them
}

TEST(Engine, EchoGivesThePromptOnceAndFirst) {
  for (const bool logprobs : {false, true}) {
    EngineHarness harness({.texts = Letters(64)});
    Request request = Greedy({1, 2, 3}, 2, 2);
    request.echo = true;
    request.prompt_logprobs = logprobs;
    std::vector<StreamEvent> events;
    request.on_event = [&](const StreamEvent& event) { events.push_back(event); };
    ASSERT_TRUE(harness.engine().Submit(request).ok());
    harness.RunToEnd();
    ASSERT_EQ(events.size(), 1u + 2 * 2);
    EXPECT_EQ(events[0].index, -1);
    EXPECT_EQ(events[0].token_ids, request.prompt_ids);
    EXPECT_EQ(events[0].text, "bcd");
    EXPECT_EQ(events[0].prompt_logprobs.size(), logprobs ? 3u : 0u);
    for (size_t i = 1; i < events.size(); ++i) EXPECT_GE(events[i].index, 0);
  }
}

TEST(Engine, PromptLogprobsOfACachedPromptAreTheSame) {
  EngineHarness harness({});
  for (int i = 0; i < 2; ++i) {
    Request request = Greedy(Prompt(40), 3, 2);
    request.prompt_logprobs = true;
    harness.Submit(request);
    harness.RunToEnd();
  }
  EXPECT_EQ(harness.prompt_logprobs(0), harness.prompt_logprobs(1));
  EXPECT_EQ(harness.outputs(0)[1].tokens, harness.outputs(1)[1].tokens);
}

// --------------------------------------------------------------------------------------------------------- requests that come and
// go

TEST(Engine, PromptLogprobsFromAPlaceOnComputeNoMore) {
  EngineHarness harness({.model = {.num_pages = 128}, .max_batch_tokens = 64});
  Request request = Greedy(Prompt(100), 2);
  request.prompt_logprobs = true;
  request.cache_salt = "another";  // its log-probabilities are found by none of the others
  harness.Submit(request);
  request.cache_salt = "";
  request.prompt_logprobs = false;
  harness.Submit(request);
  harness.RunToEnd();
  request.prompt_logprobs = true;
  const int64_t before = harness.model().tokens_computed();
  request.prompt_logprobs_begin = 90;
  harness.Submit(request);
  request.prompt_logprobs_begin = 100;
  harness.Submit(request);
  harness.RunToEnd();
  EXPECT_EQ(harness.model().tokens_computed() - before, 11 + 1 + 1 + 1);  // [89, 100), the last token, and one generated each
  ASSERT_EQ(harness.prompt_logprobs(2).size(), 100u);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(harness.prompt_logprobs(2)[i], i < 90 ? std::nullopt : harness.prompt_logprobs(0)[i]) << i;
    EXPECT_EQ(harness.prompt_logprobs(3)[i], std::nullopt);
  }
}

TEST(Engine, EqualPromptsInFlightAreComputedOnce) {
  EngineHarness harness({.model = {.num_pages = 128}, .max_batch_tokens = 32});
  for (int i = 0; i < 4; ++i) harness.Submit(Greedy(Prompt(100), 4));
  harness.RunToEnd();
  // Each computes the prompt's last token for its logits, and three tokens of its own.
  EXPECT_EQ(harness.model().tokens_computed(), 100 + 3 * 1 + 4 * 3);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(harness.outputs(i)[0].tokens, harness.GreedyAfter(Prompt(100), 4));
  EXPECT_EQ(harness.engine().Metrics().cached_tokens, 3 * 100);
}

TEST(Engine, ARequestThatSharesWithAPromptOfTheSameStepDoesNotWait) {
  EngineHarness harness({.model = {.num_pages = 128}, .max_batch_tokens = 256});
  std::vector<std::vector<int32_t>> prompts;
  for (const int32_t shared : {40, 40, 1, 20, 32}) {  // with the first one
    prompts.push_back(Prompt(40));
    for (int32_t i = shared; i < 40; ++i) prompts.back()[i] = (prompts.back()[i] + shared) % 64;
  }
  for (const std::vector<int32_t>& prompt : prompts) harness.Submit(Greedy(prompt, 20, 2));
  harness.Step();
  // Computed in this step: all of it; its last token; 40 without a whole shared page; past the first page; past the second.
  EXPECT_EQ(harness.model().tokens_computed(), 40 + 1 + 40 + 24 + 8);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(harness.outputs(i)[0].tokens.size(), 1u) << i;
  }
  harness.RunToEnd();
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (const Output& output : harness.outputs(i)) EXPECT_EQ(output.tokens, harness.GreedyAfter(prompts[i], 20)) << i;
  }
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
}

TEST(Engine, EqualTextOfRunningSamplesIsStoredOnce) {
  for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kStore}) {
    EngineHarness harness({.model = {.num_pages = 128}, .sharing = sharing});
    harness.Submit(Greedy(Prompt(10), 60, 6));
    harness.Step(50);  // 10 + 49 tokens computed
    EXPECT_EQ(harness.engine().Metrics().merged_pages, 3 * 5);
    EXPECT_EQ(harness.cache().usage().pages_in_use, 3 + 6);
    // A follow-up that comes while they run shares the pages that are whole.
    std::vector<int32_t> turn = Prompt(10);
    for (const int32_t token : harness.outputs(0)[0].tokens) turn.push_back(token);
    const int64_t before = harness.engine().Metrics().cached_tokens;
    harness.Submit(Greedy(turn, 3));
    harness.RunToEnd();
    EXPECT_EQ(harness.engine().Metrics().cached_tokens - before, 48);
    for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.tokens, harness.GreedyAfter(Prompt(10), 60));
    EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(turn, 3));
    EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
  }
}

// Prompts of two groups that share 30 tokens each, in turns.
std::vector<int32_t> MemberOf(int32_t group, int32_t member) {
  std::vector<int32_t> prompt = Prompt(30, group);
  prompt.push_back(member);
  return prompt;
}

TEST(Engine, GroupsRunTogetherWhenNotAllFit) {
  for (const int32_t budget : {8, 64}) {  // the shared part in several steps, or in one
    SCOPED_TRACE(budget);
    EngineHarness harness({.model = {.num_pages = 128}, .max_running = 4, .max_batch_tokens = budget});
    for (int32_t member = 0; member < 4; ++member) {
      for (const int32_t group : {0, 1}) harness.Submit(Greedy(MemberOf(group, member), 20));
    }
    harness.Step(10);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(harness.outputs(i)[0].tokens.empty(), i % 2 == 1) << i;
    harness.RunToEnd();
    for (int32_t i = 0; i < 8; ++i) {
      EXPECT_EQ(harness.outputs(i)[0].tokens, harness.GreedyAfter(MemberOf(i % 2, i / 2), 20));
    }
  }
}

// The order in which requests begin, by the place of their submission, while at most `running` of them run at a time.
std::vector<int32_t> OrderOfBeginning(EngineHarness& harness, const std::vector<Request>& requests) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request request = requests[i];
    request.on_event = [&order, i, begun = false](const StreamEvent& event) mutable {
      if (event.begun && !std::exchange(begun, true)) order.push_back(static_cast<int32_t>(i));
    };
    EXPECT_TRUE(harness.engine().Submit(std::move(request)).ok());
  }
  harness.RunToEnd();
  return order;
}

// Requests of trainers: each prompt in many requests of one sample, in any order, and many more of them wait than are compared.
TEST(Engine, MembersOfGroupsFollowEachOtherWhereverTheyQueue) {
  constexpr int32_t kPrompts = 32, kMembers = 16, kLength = 40, kTokens = 6;
  for (const int32_t budget : {24, 256}) {  // a prompt takes several steps, or several prompts fit into one
    SCOPED_TRACE(budget);
    std::vector<int32_t> prompts;
    for (int32_t i = 0; i < kPrompts * kMembers; ++i) prompts.push_back(i % kPrompts);
    std::ranges::shuffle(prompts, std::mt19937(7));
    std::vector<Request> requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
      requests.push_back({.prompt_ids = Prompt(kLength, prompts[i]), .max_tokens = kTokens});
      requests.back().sampling.seed = i;
    }
    EngineHarness harness({.model = {.num_pages = 100}, .max_running = 8, .max_batch_tokens = budget});
    const std::vector<int32_t> order = OrderOfBeginning(harness, requests);
    ASSERT_EQ(order.size(), prompts.size());
    int32_t groups = 1;
    for (size_t i = 1; i < order.size(); ++i) groups += prompts[order[i]] != prompts[order[i - 1]];
    EXPECT_EQ(groups, kPrompts);
    // Each prompt once, but for what some have in common by chance; each member its last token, for the logits.
    EXPECT_LE(harness.engine().Metrics().prefilled_tokens, kPrompts * (kLength + kMembers - 1));
  }
}

// Questions about 40 documents, each of which has room in the cache only while it is asked about.
TEST(Engine, TextsWithMuchInCommonFollowEachOtherToo) {
  constexpr int32_t kDocuments = 40, kQuestions = 8, kLength = 64;
  std::vector<Request> requests;
  for (int32_t question = 0; question < kQuestions; ++question) {
    for (int32_t document = 0; document < kDocuments; ++document) {
      requests.push_back({.prompt_ids = Prompt(kLength, document), .max_tokens = 2});
      requests.back().prompt_ids.push_back(question);
    }
  }
  EngineHarness harness({.model = {.num_pages = 24}, .max_running = 2, .max_batch_tokens = 256});
  const std::vector<int32_t> order = OrderOfBeginning(harness, requests);
  int32_t changes = 0;
  for (size_t i = 1; i < order.size(); ++i) changes += order[i] % kDocuments != order[i - 1] % kDocuments;
  EXPECT_LT(changes, 2 * kDocuments);  // 319 in the order of arrival
  EXPECT_LT(harness.engine().Metrics().prefilled_tokens, 2 * kDocuments * kLength);
}

TEST(Engine, AGroupLetsOtherNamesIn) {
  EngineHarness harness({.model = {.num_pages = 100}, .max_running = 1, .max_batch_tokens = 64});
  std::vector<Request> requests;
  for (int32_t i = 0; i < 200; ++i) requests.push_back({.prompt_ids = Prompt(20), .max_tokens = 2, .share_of = "many"});
  for (int32_t i = 0; i < 3; ++i) requests.push_back({.prompt_ids = Prompt(20, 1 + i), .max_tokens = 2, .share_of = "few"});
  const std::vector<int32_t> order = OrderOfBeginning(harness, requests);
  // 32 of another name may go before their turn, no more.
  for (int32_t i = 0; i < 3; ++i) EXPECT_LT(std::ranges::find(order, 200 + i) - order.begin(), 40) << i;
}

// A prompt that keeps coming takes the turns of those that wait, but not for ever.
TEST(Engine, AGroupThatGrowsLetsOthersIn) {
  EngineHarness harness({.model = {.num_pages = 100}, .max_running = 2, .max_batch_tokens = 64});
  const auto submit_warm = [&] { harness.Submit(Greedy(Prompt(40), 2)); };
  for (int i = 0; i < 40; ++i) submit_warm();
  harness.Step();
  harness.Submit(Greedy(Prompt(40, 9), 1));
  const size_t cold = 40;
  int served = 0;
  for (; served < 2000 && !harness.done(cold); ++served) {
    submit_warm();
    harness.Step();
  }
  EXPECT_TRUE(harness.done(cold)) << served;
}

TEST(Engine, CancellingTheComputingRequestHandsThePromptOver) {
  EngineHarness harness({.model = {.num_pages = 128}, .max_batch_tokens = 32});
  const RequestId first = harness.Submit(Greedy(Prompt(100), 4));
  harness.Submit(Greedy(Prompt(100), 4));
  harness.Step(2);  // 64 of 100 tokens
  ASSERT_TRUE(harness.engine().Cancel(first).ok());
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(0)[0].reason, FinishReason::kCancelled);
  EXPECT_TRUE(harness.done(0));
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(Prompt(100), 4));
  EXPECT_EQ(harness.model().tokens_computed(), 100 + 3);
}

TEST(Engine, SaltsAreNeverShared) {
  EngineHarness harness({.model = {.num_pages = 128}});
  Request a = Greedy(Prompt(40), 4), b = a, c = a;
  a.cache_salt = "alice";
  b.cache_salt = "bob";
  c.cache_salt = "bob";
  c.cache_private_begin = 20;
  harness.Submit(a);
  harness.RunToEnd();
  harness.Submit(b);
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().cached_tokens, 0);
  harness.Submit(c);  // public up to 20, and no public text is there yet
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().cached_tokens, 0);
  Request d = Greedy(Prompt(40), 4);
  harness.Submit(d);  // finds the public part of c
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().cached_tokens, 20);
  EXPECT_EQ(harness.outputs(3)[0].tokens, harness.outputs(0)[0].tokens);
}

TEST(Engine, TenantsNeverShare) {
  EngineHarness harness({.model = {.num_pages = 128}});
  const auto cached = [&](const std::string& tenant, const std::string& salt, int32_t begin = 0) {
    Request request = Greedy(Prompt(40), 4);
    request.cache_tenant = {.name = tenant, .begin = begin};
    request.cache_salt = salt;
    request.cache_private_begin = begin;
    const int64_t before = harness.engine().Metrics().cached_tokens;
    harness.Submit(request);
    harness.RunToEnd();
    return harness.engine().Metrics().cached_tokens - before;
  };
  EXPECT_EQ(cached("alice", ""), 0);
  EXPECT_EQ(cached("bob", ""), 0);
  EXPECT_EQ(cached("bob", "alice"), 0);
  EXPECT_EQ(cached("alice", "alice"), 0);
  EXPECT_EQ(cached("alice", ""), 40);
  EXPECT_EQ(cached("carol", "", 20), 0);  // the public text is there from now on
  EXPECT_EQ(cached("dave", "s", 20), 20);
  const auto tenants = harness.engine().Metrics().tenant_prefixes;
  ASSERT_TRUE(tenants);
  ASSERT_TRUE(tenants->contains("dave"));
  for (const CachedPrefix& node : tenants->at("dave")) EXPECT_GE(node.begin, 20);
  EXPECT_EQ(tenants->at("dave")[0].parent, 0);
}

TEST(Engine, ASavedPrefixIsLoadedForATenant) {
  const std::string path = ::testing::TempDir() + "engine_test_tenant_prefix" + std::to_string(getpid());
  const auto request = [](const std::string& tenant, const std::string& salt) {
    Request made = Greedy(Prompt(40), 2);
    made.cache_tenant = {.name = tenant, .begin = 0};
    made.cache_salt = salt;
    made.cache_private_begin = 10;
    return made;
  };
  for (const char* const salt : {"", "s"}) {
    EngineHarness writer({});
    Request pinned = request("", salt);  // as servers without keys wrote them
    pinned.pin_prompt_as = "p";
    writer.Submit(pinned);
    writer.RunToEnd();
    ASSERT_TRUE(writer.engine().SavePrefix("p", path).ok());

    EngineHarness reader({});
    EXPECT_EQ(reader.engine().LoadPrefix("p", path, {.name = std::string(4097, 'x')}).code(), StatusCode::kInvalidArgument);
    ASSERT_TRUE(reader.engine().LoadPrefix("p", path, {.name = "alice"}).ok());
    ASSERT_TRUE(reader.engine().SavePrefix("p", path).ok());  // as it was: the file does not name its tenant
    EXPECT_EQ(writer.engine().LoadPrefix("p", path, CacheTenant()).code(), StatusCode::kOk);
    for (const Request& stranger : {request("bob", salt), request("", salt)}) {
      reader.Submit(stranger);
      reader.RunToEnd();
      EXPECT_EQ(reader.engine().Metrics().cached_tokens, 0);
    }
    reader.Submit(request("alice", salt));
    reader.RunToEnd();
    EXPECT_EQ(reader.engine().Metrics().cached_tokens, 40);
  }
  std::filesystem::remove(path);
}

TEST(Engine, AFollowUpTurnFindsWhatWasGenerated) {
  EngineHarness harness({});
  harness.Submit(Greedy(Prompt(40), 10));
  harness.RunToEnd();
  std::vector<int32_t> turn = Prompt(40);
  const std::vector<int32_t>& answer = harness.outputs(0)[0].tokens;
  turn.insert(turn.end(), answer.begin(), answer.end());
  turn.push_back(3);
  harness.Submit(Greedy(turn, 5));
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().cached_tokens, 49);  // the last generated token was never fed
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(turn, 5));
}

TEST(Engine, AFollowUpSharesWithSiblingsThatStillRun) {
  EngineHarness harness({.model = {.num_pages = 256}, .max_batch_tokens = 64});
  Request request{.prompt_ids = Prompt(40), .n = 4, .max_tokens = 60};
  request.sampling.seed = 3;
  // One sample ends early: on the first token that it alone has at place 8.
  EngineHarness probe({.model = {.num_pages = 256}, .max_batch_tokens = 64});
  probe.Submit(request);
  probe.RunToEnd();
  const std::vector<int32_t>& early = probe.outputs(0)[1].tokens;
  request.stop_token_ids = {early[8]};
  harness.Submit(request);
  while (!harness.outputs(0)[1].reason) harness.Step();
  ASSERT_EQ(harness.outputs(0)[1].reason, FinishReason::kStop);
  ASSERT_GT(harness.engine().Metrics().running, 0);  // siblings go on
  const size_t answered = harness.outputs(0)[1].tokens.size();

  std::vector<int32_t> turn = Prompt(40);
  turn.insert(turn.end(), harness.outputs(0)[1].tokens.begin(), harness.outputs(0)[1].tokens.end());
  turn.push_back(11);
  // Two branches of a search from the same text: the second shares what the first computes.
  harness.Submit(Greedy(turn, 6));
  harness.Step(2);
  const int64_t pages = harness.cache().usage().pages_in_use;
  EXPECT_EQ(harness.engine().Metrics().cached_tokens, 40 + static_cast<int64_t>(answered) - 1);
  harness.Submit(Greedy(turn, 6, 3));
  harness.Step(1);
  EXPECT_EQ(harness.engine().Metrics().cached_tokens, 2 * (40 + static_cast<int64_t>(answered)));
  EXPECT_LT(harness.cache().usage().pages_in_use, pages + 8);  // copies would be 12, siblings grow meanwhile
  harness.RunToEnd();
  const std::vector<int32_t> expected = harness.GreedyAfter(turn, 6);
  EXPECT_EQ(harness.outputs(1)[0].tokens, expected);
  for (const Output& output : harness.outputs(2)) EXPECT_EQ(output.tokens, expected);
}

TEST(Engine, APinnedPromptOutlivesAFullCache) {
  EngineHarness harness({.model = {.num_pages = 12, .page_size = 16}});
  Request system = Greedy(Prompt(64), 1);
  system.pin_prompt_as = "system";
  EXPECT_EQ(harness.engine().Unpin("system").code(), StatusCode::kNotFound);
  harness.Submit(system);
  harness.RunToEnd();
  for (int i = 1; i < 6; ++i) harness.Submit(Greedy(Prompt(70, i), 5));  // evict whatever may be evicted
  harness.RunToEnd();
  const int64_t before = harness.engine().Metrics().cached_tokens;
  harness.Submit(Greedy(Prompt(64), 3));
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().cached_tokens - before, 64);
  ASSERT_TRUE(harness.engine().Unpin("system").ok());
  harness.Step();
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
}

TEST(Engine, ASavedPrefixIsRestoredInAnotherEngine) {
  const std::string path = ::testing::TempDir() + "engine_test_prefix" + std::to_string(getpid());
  for (const int32_t length : {15, 16, 17, 40}) {
    SCOPED_TRACE(length);
    EngineHarness writer({});
    Request system = Greedy(Prompt(length), 1);
    system.pin_prompt_as = "system";
    system.cache_salt = "alice";
    system.cache_private_begin = 10;
    EXPECT_EQ(writer.engine().SavePrefix("system", path).code(), StatusCode::kNotFound);
    writer.Submit(system);
    writer.RunToEnd();
    ASSERT_TRUE(writer.engine().SavePrefix("system", path).ok());

    for (const int32_t page_size : {1, 16}) {
      EngineHarness reader({.model = {.num_pages = 256 / page_size, .page_size = page_size}});
      reader.Submit(Greedy(Prompt(length / 2), 1));  // a part is there already
      reader.RunToEnd();
      const Status loaded = reader.engine().LoadPrefix("system", path, CacheTenant());
      ASSERT_TRUE(loaded.ok()) << loaded.ToString();
      ASSERT_TRUE(reader.cache().CheckIntegrity().ok());
      const EngineMetrics before = reader.engine().Metrics();
      std::vector<int32_t> turn = Prompt(length);
      turn.push_back(9);
      Request request = Greedy(turn, 5, 3), stranger = Greedy(turn, 5);
      request.cache_salt = "alice";
      request.cache_private_begin = 10;
      reader.Submit(request);
      reader.RunToEnd();
      EXPECT_EQ(reader.engine().Metrics().cached_tokens - before.cached_tokens, length);
      EXPECT_EQ(reader.outputs(1)[2].tokens, reader.GreedyAfter(turn, 5));
      reader.Submit(stranger);  // sees the public part alone
      reader.RunToEnd();
      EXPECT_EQ(reader.engine().Metrics().cached_tokens - before.cached_tokens, length + std::max(10, length / 2));
      EXPECT_EQ(reader.outputs(2)[0].tokens, reader.GreedyAfter(turn, 5));
      EXPECT_GT(reader.cache().usage().pages_in_use, 0);
      ASSERT_TRUE(reader.engine().Unpin("system").ok());
      reader.RunToEnd();
      reader.cache().DropCached();
      EXPECT_EQ(reader.cache().usage().pages_owned, 0);
    }
  }
  std::filesystem::remove(path);
}

TEST(Engine, APrefixThatDoesNotFitIsRefusedAndNothingIsLost) {
  const std::string path = ::testing::TempDir() + "engine_test_refused_prefix" + std::to_string(getpid());
  EngineHarness writer({});
  Request system = Greedy(Prompt(100), 1);
  system.pin_prompt_as = "system";
  writer.Submit(system);
  writer.RunToEnd();
  ASSERT_TRUE(writer.engine().SavePrefix("system", path).ok());

  EngineHarness small({.model = {.num_pages = 6}});
  EXPECT_EQ(small.engine().LoadPrefix("system", path, CacheTenant()).code(), StatusCode::kResourceExhausted);
  EngineHarness other({});
  other.model().set_fingerprint("another");
  EXPECT_EQ(other.engine().LoadPrefix("system", path, CacheTenant()).code(), StatusCode::kInvalidArgument);
  EngineHarness copying({.sharing = SharingMode::kNone});
  EXPECT_EQ(copying.engine().LoadPrefix("system", path, CacheTenant()).code(), StatusCode::kInvalidArgument);
  EngineHarness busy({.max_batch_tokens = 16});
  busy.Submit(Greedy(Prompt(100), 3));
  busy.Step(2);
  EXPECT_EQ(busy.engine().LoadPrefix("system", path, CacheTenant()).code(), StatusCode::kUnavailable);
  busy.RunToEnd();
  EXPECT_TRUE(busy.engine().LoadPrefix("system", path, CacheTenant()).ok());  // all of it is cached: only the pin is new
  for (EngineHarness* harness : {&small, &other, &copying}) {
    EXPECT_EQ(harness->engine().Unpin("system").code(), StatusCode::kNotFound);
    EXPECT_EQ(harness->cache().usage().pages_owned, 0);
    ASSERT_TRUE(harness->cache().CheckIntegrity().ok());
  }
  std::filesystem::remove(path);
}

TEST(Engine, PrefixesAreSavedAndLoadedWhileAnotherThreadSteps) {
  const std::string path = ::testing::TempDir() + "engine_test_threads_prefix" + std::to_string(getpid());
  EngineHarness harness({.model = {.num_pages = 256}});
  Request system = Greedy(Prompt(40), 1);
  system.pin_prompt_as = "system";
  harness.Submit(system);
  harness.RunToEnd();
  std::atomic<bool> done{false};
  std::thread visitor([&] {
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(harness.engine().SavePrefix("system", path).ok());
      EXPECT_TRUE(harness.engine().LoadPrefix("copy " + std::to_string(i), path, CacheTenant()).ok());
    }
    done = true;
  });
  for (int32_t i = 0; !done; ++i) {
    if (harness.engine().Metrics().waiting == 0) harness.Submit(Greedy(Prompt(50, i), 10));
    ASSERT_TRUE(harness.engine().Step().ok());
  }
  visitor.join();
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].tokens.size(), 10u);
  std::filesystem::remove(path);
}

TEST(Engine, DecodesAreNeverStalledByALongPrompt) {
  EngineHarness harness({.model = {.num_pages = 64}, .max_batch_tokens = 16});
  harness.Submit(Greedy(Prompt(8), 40));
  harness.Step(2);
  const size_t before = harness.outputs(0)[0].tokens.size();
  harness.Submit(Greedy(Prompt(200, 9), 2));
  harness.Step(5);
  EXPECT_EQ(harness.outputs(0)[0].tokens.size(), before + 5);
  EXPECT_LE(harness.model().largest_batch(), 16);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(Prompt(200, 9), 2));
}

TEST(Engine, AChunkLimitsThePromptTokensOfAStep) {
  EngineHarness harness({.model = {.num_pages = 64}, .max_batch_tokens = 64, .chunk = 16});
  harness.Submit(Greedy(Prompt(8), 40));
  harness.Step(2);
  harness.Submit(Greedy(Prompt(100, 9), 2));
  harness.Submit(Greedy(Prompt(100, 8), 2));
  for (int step = 0; step < 5; ++step) {
    harness.Step();
    EXPECT_EQ(harness.engine().Metrics().last_step.prefill_rows, 16);
    EXPECT_EQ(harness.engine().Metrics().last_step.decode_rows, 1);
  }
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().chunk, 16);
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(Prompt(100, 9), 2));
  EXPECT_EQ(harness.outputs(2)[0].tokens, harness.GreedyAfter(Prompt(100, 8), 2));
}

TEST(Engine, PrefillFirstStallsDecodesAsLongAsPromptsWait) {
  EngineHarness harness({.model = {.num_pages = 64}, .max_batch_tokens = 32, .schedule = SchedulePolicy::kPrefillFirst});
  harness.Submit(Greedy(Prompt(8), 40));
  harness.Step(2);
  const size_t before = harness.outputs(0)[0].tokens.size();
  harness.Submit(Greedy(Prompt(100, 9), 10));
  harness.Submit(Greedy(Prompt(20, 8), 10));
  harness.Step(4);  // 120 tokens in steps of 32
  EXPECT_EQ(harness.outputs(0)[0].tokens.size(), before);
  EXPECT_EQ(harness.engine().Metrics().last_step.decode_rows, 0);
  harness.Step(3);
  EXPECT_EQ(harness.outputs(0)[0].tokens.size(), before + 3);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(Prompt(100, 9), 10));
}

TEST(Engine, MetricsReportStepsApartAndWhatIsShared) {
  EngineHarness harness({.model = {.num_pages = 64}});
  Request request{.prompt_ids = Prompt(20), .n = 4, .max_tokens = 6};
  request.pin_prompt_as = "p";
  harness.Submit(request);
  harness.Submit(Greedy(Prompt(10, 7), 20));  // shares nothing
  harness.Step(3);
  const EngineMetrics metrics = harness.engine().Metrics();
  EXPECT_EQ(metrics.last_step.step, 3);
  EXPECT_EQ(metrics.last_step.decode_rows, 5);
  EXPECT_EQ(metrics.last_step.prefill_rows, 0);
  EXPECT_EQ(metrics.last_step.grouped_rows, 4);
  EXPECT_EQ(metrics.rows, 30 + 2 * 5);
  EXPECT_EQ(metrics.grouped_rows, 2 * 4);
  EXPECT_GT(metrics.last_step.seconds, 0);
  EXPECT_LT(metrics.last_step.kv_bytes_read, metrics.last_step.kv_bytes_read_unshared);
  harness.RunToEnd();
  harness.Submit(Greedy(Prompt(20), 1));
  harness.RunToEnd();
  const std::vector<CachedPrefix> prefixes = harness.engine().Metrics().prefixes;  // the engine is idle: up to date
  ASSERT_FALSE(prefixes.empty());
  EXPECT_EQ(prefixes[0].begin, 0);
  EXPECT_EQ(prefixes[0].end, 20);
  EXPECT_EQ(prefixes[0].hits, 1);
  EXPECT_EQ(prefixes[0].users, 0);
  EXPECT_TRUE(prefixes[0].pinned);
}

TEST(Engine, MetricsHaveTheTreeParentsFirst) {
  EngineHarness harness({.model = {.num_pages = 4096, .page_size = 4}, .max_running = 64, .max_batch_tokens = 4096});
  std::vector<int32_t> prompt = Prompt(8);
  for (int32_t i = 0; i < 300; ++i) {  // a trunk, 60 nodes above it, 5 leaves on each
    prompt.resize(8);
    prompt.insert(prompt.end(), {i % 60, 1, 1, 1, i / 60, 1, 1, 1});
    harness.Submit(Greedy(prompt, 1));
  }
  harness.RunToEnd();
  const EngineMetrics metrics = harness.engine().Metrics();
  EXPECT_EQ(metrics.prefixes.size(), 256U);
  EXPECT_GT(metrics.tree_nodes, 256);
  std::map<int32_t, int32_t> ends = {{0, 0}};
  for (const CachedPrefix& node : metrics.prefixes) {
    ASSERT_TRUE(ends.contains(node.parent)) << node.id;
    EXPECT_EQ(node.begin, ends[node.parent]);
    EXPECT_GT(node.end, node.begin);
    EXPECT_TRUE(ends.emplace(node.id, node.end).second);
  }
}

TEST(Engine, CachedPromptsGoFirstAndColdOnesDoNotStarve) {
  EngineHarness harness({.model = {.num_pages = 400}, .max_running = 1, .max_batch_tokens = 64});
  harness.Submit(Greedy(Prompt(40), 1));
  harness.RunToEnd();
  const size_t running = 1, cold = 2, warm = 3;
  harness.Submit(Greedy(Prompt(40), 3));
  harness.Step();
  harness.Submit(Greedy(Prompt(40, 9), 1));
  harness.Submit(Greedy(Prompt(40), 1));
  while (!harness.done(warm)) harness.Step();
  EXPECT_TRUE(harness.done(running));
  EXPECT_FALSE(harness.done(cold));
  // A stream of warm requests that never ends still lets the cold one in.
  for (int i = 0; i < 200 && !harness.done(cold); ++i) {
    harness.Submit(Greedy(Prompt(40), 1));
    harness.Step();
  }
  EXPECT_TRUE(harness.done(cold));
}

TEST(Engine, OutOfPagesPreemptsAndResumes) {
  EngineHarness harness({.model = {.num_pages = 12, .page_size = 4}, .max_batch_tokens = 16});
  for (int i = 0; i < 4; ++i) harness.Submit(Greedy(Prompt(6, i), 30));
  harness.RunToEnd();
  EXPECT_GT(harness.engine().Metrics().preemptions, 0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(harness.outputs(i)[0].tokens, harness.GreedyAfter(Prompt(6, i), 30)) << i;
    EXPECT_EQ(harness.outputs(i)[0].reason, FinishReason::kLength);
  }
}

TEST(Engine, WithoutSharingTooSamplesThatHadToWaitAreComputedAgain) {
  for (const int32_t budget : {150, 272, 273, 512}) {
    EngineHarness harness({.model = {.max_position = 512, .num_pages = 200},
                           .max_running = 4,
                           .max_batch_tokens = budget,
                           .sharing = SharingMode::kNone});
    harness.Submit(Greedy(Prompt(271), 24, 8));
    harness.RunToEnd();
    const std::vector<int32_t> expected = harness.GreedyAfter(Prompt(271), 24);
    for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.tokens, expected);
  }
}

TEST(Engine, CancelsAtAnyMoment) {
  EngineHarness harness({.model = {.num_pages = 64}, .max_batch_tokens = 16});
  const RequestId waiting = harness.Submit(Greedy(Prompt(50), 10, 3));
  ASSERT_TRUE(harness.engine().Cancel(waiting).ok());  // before it was ever seen
  const RequestId prefilling = harness.Submit(Greedy(Prompt(50, 1), 10, 3));
  harness.Step(2);
  ASSERT_TRUE(harness.engine().Cancel(prefilling).ok());
  harness.Step();
  const RequestId decoding = harness.Submit(Greedy(Prompt(5, 2), 100, 3));
  harness.Step(4);
  ASSERT_TRUE(harness.engine().Cancel(decoding).ok());
  harness.RunToEnd();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(harness.done(i));
    for (const Output& output : harness.outputs(i)) EXPECT_EQ(output.reason, FinishReason::kCancelled);
  }
  EXPECT_FALSE(harness.outputs(2)[0].tokens.empty());
  EXPECT_EQ(harness.engine().Cancel(decoding).code(), StatusCode::kNotFound);
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
}

// Submit, cancel, pin, unpin, eviction, preemption and failing steps at random, CheckIntegrity after every step.
// COPPICE_LONG_TEST=1 (ctest label `long`) runs 10^6 events.
TEST(Engine, RandomTrafficMatchesTheHistories) {
  constexpr int kEventsPerRound = 1000;
  const int rounds = std::getenv("COPPICE_LONG_TEST") != nullptr ? 1000 : 10;
  int64_t finished = 0, preemptions = 0, merged = 0;
  std::mt19937 random(3);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const bool shares = round % 4 != 3;
    EngineHarness harness({.model = {.vocab_size = 64, .max_position = 64, .num_pages = 30, .page_size = 4},
                           .max_running = 5,
                           .max_batch_tokens = 11,
                           .chunk = round % 2 == 0 ? 0 : 5,
                           .schedule = round % 5 == 4 ? SchedulePolicy::kPrefillFirst : SchedulePolicy::kMixed,
                           .sharing = shares ? SharingMode::kTree : SharingMode::kNone});
    std::vector<Request> requests;
    std::vector<RequestId> ids;
    for (int event = 0; event < kEventsPerRound; ++event) {
      if (random() % 4 == 0) {
        Request request = Greedy(Prompt(1 + random() % 30, random() % 3), 1 + random() % 12, 1 + random() % 7);
        if (random() % 5 == 0) request.cache_salt = "x";
        if (round % 3 > 0) request.share_of = std::string(1, static_cast<char>('a' + random() % 3));
        if (round % 3 > 1) request.priority = random() % 2;
        if (random() % 6 == 0) request.prompt_logprobs = true;
        if (random() % 8 == 0) request.max_tokens = 0;
        if (random() % 6 == 0 && !request.prompt_logprobs)
          request.prompt_scores = {{.position = static_cast<int32_t>(random() % request.prompt_ids.size()), .token = 3}};
        if (shares && random() % 20 == 0 && request.prompt_ids.size() < 12) request.pin_prompt_as = random() % 2 == 0 ? "p" : "q";
        requests.push_back(request);
        ids.push_back(harness.Submit(request));
      }
      if (random() % 12 == 0 && !ids.empty()) (void)harness.engine().Cancel(ids[random() % ids.size()]);
      if (random() % 40 == 0) (void)harness.engine().Unpin(random() % 2 == 0 ? "p" : "q");
      const bool fails = random() % 300 == 0;
      if (fails) harness.model().FailNext(Internal("at random"));
      const Result<bool> step = harness.engine().Step();
      ASSERT_TRUE(step.ok() || fails) << step.status().ToString();
      harness.model().FailNext(OkStatus());
      const Status status = harness.cache().CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.message() << " after event " << event;
    }
    harness.RunToEnd();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(harness.done(i));
      const std::vector<int32_t> expected = harness.GreedyAfter(requests[i].prompt_ids, requests[i].max_tokens);
      for (const Output& output : harness.outputs(i)) {
        ASSERT_LE(output.tokens.size(), expected.size());
        ASSERT_TRUE(std::equal(output.tokens.begin(), output.tokens.end(), expected.begin()));
        if (output.reason != FinishReason::kLength) continue;
        ++finished;
        ASSERT_EQ(output.tokens.size(), expected.size());
      }
    }
    preemptions += harness.engine().Metrics().preemptions;
    merged += harness.engine().Metrics().merged_pages;
    for (const char* name : {"p", "q"}) (void)harness.engine().Unpin(name);
    harness.RunToEnd();
    ASSERT_EQ(harness.cache().usage().pages_in_use, 0);
    harness.cache().DropCached();
    ASSERT_EQ(harness.cache().usage().pages_owned, 0);
  }
  EXPECT_GT(finished, 50 * rounds);
  EXPECT_GT(preemptions, rounds);
  EXPECT_GT(merged, rounds);
}

TEST(Engine, SubmitAndCancelFromOtherThreads) {
  for (const bool event_thread : {false, true}) {
    EngineHarness harness({.model = {.num_pages = 256}, .event_thread = event_thread});
    std::atomic<int> done{0};
    std::vector<std::thread> clients;
    for (int t = 0; t < 3; ++t) {
      clients.emplace_back([&, t] {
        for (int i = 0; i < 20; ++i) {
          Request request = Greedy(Prompt(5 + i, t), 4, 2);
          request.on_event = [&](const StreamEvent& event) { done += event.request_done; };
          const RequestId id = harness.engine().Submit(std::move(request)).value();
          if (i % 3 == 0) (void)harness.engine().Cancel(id);
          (void)harness.engine().Metrics();
        }
      });
    }
    while (done < 60) ASSERT_TRUE(harness.engine().Step().ok());
    for (std::thread& client : clients) client.join();
    const EngineMetrics metrics = harness.engine().Metrics();
    EXPECT_EQ(metrics.waiting, 0);
    EXPECT_EQ(metrics.running, 0);
  }
}

TEST(Engine, RunSleepsUntilThereIsWorkAndStopsWhenAsked) {
  for (const bool event_thread : {false, true}) {
    EngineHarness harness({.model = {.num_pages = 256}, .steps_ahead = event_thread ? 1 : 0, .event_thread = event_thread});
    std::atomic<int> done{0}, cancelled{0};
    std::jthread runner([&](const std::stop_token& stop) { EXPECT_TRUE(harness.engine().Run(stop).ok()); });
    for (int i = 0; i < 20; ++i) {
      Request request = Greedy(Prompt(5 + i), 4, 2);
      if (i % 3 == 0) request.max_tokens = 200;
      request.on_event = [&](const StreamEvent& event) {
        cancelled += event.finish_reason == FinishReason::kCancelled;
        done += event.request_done;
        done.notify_all();
      };
      const RequestId id = harness.engine().Submit(std::move(request)).value();
      if (i % 3 == 0) (void)harness.engine().Cancel(id);
      for (int seen = done; seen <= i; seen = done) done.wait(seen);  // the engine is idle, or soon will be
    }
    runner.request_stop();
    runner.join();
    EXPECT_GT(cancelled, 0);
    EXPECT_EQ(harness.engine().Load().waiting, 0);
    EXPECT_EQ(harness.engine().Load().running, 0);
    std::stop_source stopped;
    stopped.request_stop();
    EXPECT_TRUE(harness.engine().Run(stopped.get_token()).ok());  // at once
  }
}

TEST(Engine, NoEventComesAfterRun) {
  EngineHarness harness({.event_thread = true});
  std::stop_source stop;
  std::atomic<int> events{0};
  Request request = Greedy(Prompt(5), 20);
  request.on_event = [&](const StreamEvent&) {
    stop.request_stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++events;
  };
  ASSERT_TRUE(harness.engine().Submit(std::move(request)).ok());
  ASSERT_TRUE(harness.engine().Run(stop.get_token()).ok());
  const int seen = events;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_GT(seen, 0);
  EXPECT_EQ(events, seen);
}

// ---------------------------------------------------------------------------------------------------------------------------
// endings

TEST(Engine, EndsAtEosUnlessIgnored) {
  const std::vector<int32_t> expected = EngineHarness({}).GreedyAfter(Prompt(9), 8);
  EngineConfig config{.model = {.eos_token_ids = {expected[3]}}, .texts = Letters(64)};
  const size_t first = std::find(expected.begin(), expected.end(), expected[3]) - expected.begin();
  EngineHarness harness(config);
  harness.Submit(Greedy(Prompt(9), 8));
  Request ignoring = Greedy(Prompt(9), 8);
  ignoring.ignore_eos = true;
  harness.Submit(ignoring);
  harness.RunToEnd();
  const Output& output = harness.outputs(0)[0];
  EXPECT_EQ(output.reason, FinishReason::kStop);
  EXPECT_EQ(output.tokens.size(), first + 1);  // the token that ended it is listed,
  EXPECT_EQ(output.text.size(), first);        // its text is not
  EXPECT_EQ(harness.outputs(1)[0].tokens, expected);
}

TEST(Engine, MinTokensPutsTheEndOff) {
  const std::vector<int32_t> expected = EngineHarness({}).GreedyAfter(Prompt(9), 2);
  Request request = Greedy(Prompt(9), 12);
  request.stop_token_ids = {expected[0], expected[1]};
  request.min_tokens = 5;
  EngineHarness harness({});
  harness.Submit(request);
  harness.RunToEnd();
  const Output& output = harness.outputs(0)[0];
  EXPECT_GE(output.tokens.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NE(output.tokens[i], expected[0]);
    EXPECT_NE(output.tokens[i], expected[1]);
  }
}

TEST(Engine, StopStringsAreFoundAcrossTokensAndLeftOut) {
  EngineConfig config{.texts = Letters(64)};
  EngineHarness plain(config);
  plain.Submit(Greedy(Prompt(9), 12));
  plain.RunToEnd();
  const std::string text = plain.outputs(0)[0].text;
  ASSERT_EQ(text.size(), 12u);
  Request request = Greedy(Prompt(9), 12);
  request.stop = {text.substr(5, 3), "never"};
  EngineHarness harness(config);
  harness.Submit(request);
  harness.RunToEnd();
  const Output& output = harness.outputs(0)[0];
  EXPECT_EQ(output.reason, FinishReason::kStop);
  EXPECT_EQ(output.text, text.substr(0, text.find(request.stop[0])));
}

TEST(Engine, AnEventThreadSendsTheSameEventsInTheSameOrder) {
  const auto run = [](bool event_thread) {
    EngineHarness harness({.model = {.num_pages = 128}, .texts = Letters(64), .event_thread = event_thread});
    std::string stop = "qx";
    for (int32_t i = 0; i < 12; ++i) {
      Request request{.prompt_ids = Prompt(5 + i, i), .n = 1 + i % 3, .max_tokens = 30};
      request.sampling.seed = i;
      if (i % 2 == 0) request.stop = {std::string(1, static_cast<char>('a' + i)), stop};
      if (i % 4 == 1) request.prompt_logprobs = true;
      const RequestId id = harness.Submit(request);
      harness.Step(i % 2);
      if (i == 7) {
        EXPECT_TRUE(harness.engine().Cancel(id).ok());
      }
    }
    harness.RunToEnd();
    std::vector<std::string> texts;
    for (size_t i = 0; i < 12; ++i) {
      EXPECT_TRUE(harness.done(i));
      for (const Output& output : harness.outputs(i)) {
        texts.push_back(output.text + " " + std::string(Name(*output.reason)) + " " + std::to_string(output.tokens.size()));
      }
    }
    EXPECT_GT(harness.engine().Metrics().detokenize_seconds, 0);
    return texts;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Engine, AnEventThreadIsNotTheSteppingThread) {
  EngineHarness harness({.event_thread = true});
  std::set<std::thread::id> threads;
  int32_t tokens = 0;
  for (int32_t i = 0; i < 3; ++i) {
    Request request = Greedy(Prompt(5, i), 6);
    request.on_event = [&](const StreamEvent& event) {
      threads.insert(std::this_thread::get_id());
      tokens += static_cast<int32_t>(event.token_ids.size());
      if (event.request_done && tokens < 60) {  // submits the next one, from there
        EXPECT_TRUE(harness.engine().Submit(Greedy(Prompt(3), 1)).ok());
      }
    };
    ASSERT_TRUE(harness.engine().Submit(std::move(request)).ok());
  }
  harness.RunToEnd();
  EXPECT_EQ(tokens, 18);
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(Engine, AnEventsStepIsCountedBeforeTheEventIsSent) {
  for (const bool event_thread : {false, true}) {
    EngineHarness harness({.event_thread = event_thread});
    int32_t tokens = 0, steps = 0;
    Request request = Greedy(Prompt(5), 6);
    request.on_event = [&](const StreamEvent& event) {
      const EngineMetrics metrics = harness.engine().Metrics();
      tokens += static_cast<int32_t>(event.token_ids.size());
      EXPECT_GE(metrics.generated_tokens, tokens);
      EXPECT_GE(metrics.steps, ++steps);
      if (event.request_done) {
        EXPECT_EQ(metrics.generated_tokens, 6);
        EXPECT_EQ(metrics.running, 0);
      }
    };
    ASSERT_TRUE(harness.engine().Submit(std::move(request)).ok());
    harness.RunToEnd();
    EXPECT_EQ(tokens, 6);
  }
}

TEST(Engine, EndsAtTheContextLength) {
  EngineHarness harness({.model = {.max_position = 20, .num_pages = 16, .page_size = 4}});
  harness.Submit(Greedy(Prompt(15), 100));
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(0)[0].tokens, harness.GreedyAfter(Prompt(15), 5));
  EXPECT_EQ(harness.outputs(0)[0].reason, FinishReason::kLength);
}

TEST(Engine, ADeadlineEndsARequestWithAnError) {
  EngineHarness harness({});
  Request request = Greedy(Prompt(10), 100);
  request.timeout_seconds = 1e-6;
  harness.Submit(request);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(0)[0].reason, FinishReason::kError);
  EXPECT_EQ(harness.outputs(0)[0].status.code(), StatusCode::kDeadlineExceeded);
}

TEST(Engine, AFailedForwardEndsItsRequestsAndNoOthers) {
  EngineHarness harness({.max_running = 3, .max_batch_tokens = 16});
  harness.Submit(Greedy(Prompt(10), 10, 2));
  harness.Step(2);
  harness.Submit(Greedy(Prompt(40, 3), 10));  // computes its prompt in the step that fails
  harness.Submit(Greedy(Prompt(40, 3), 10));  // waits for it
  harness.model().FailNext(Internal("the device is gone"));
  const Result<bool> step = harness.engine().Step();
  ASSERT_FALSE(step.ok());
  EXPECT_THAT(step.status().message(), HasSubstr("the device is gone"));
  for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.reason, FinishReason::kError);
  EXPECT_EQ(harness.outputs(1)[0].reason, FinishReason::kError);
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(2)[0].tokens, harness.GreedyAfter(Prompt(40, 3), 10));
}

TEST(Engine, ALostDeviceEndsAllRequests) {
  for (const int32_t steps_ahead : {0, 1}) {
    EngineHarness harness({.max_running = 3, .max_batch_tokens = 16, .steps_ahead = steps_ahead});
    for (int32_t i = 0; i < 6; ++i) harness.Submit(Greedy(Prompt(20, i), 50, 2));  // some run, some wait
    harness.Step(5);
    harness.model().FailNext(Unavailable("the device is lost to this process"));
    Result<bool> step = harness.engine().Step();
    if (step.ok()) step = harness.engine().Step();  // what was launched before it went well
    ASSERT_EQ(step.status().code(), StatusCode::kUnavailable);
    for (size_t slot = 0; slot < 6; ++slot) {
      EXPECT_TRUE(harness.done(slot));
      for (const Output& output : harness.outputs(slot)) {
        EXPECT_EQ(output.reason, FinishReason::kError);
        EXPECT_EQ(output.status.code(), StatusCode::kUnavailable);
      }
    }
    ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
    EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
    EXPECT_FALSE(*harness.engine().Step());  // none is left
  }
}

TEST(Engine, WhatAFailedStepShouldHaveComputedIsNotShared) {
  EngineHarness harness({.model = {.num_pages = 64}, .max_batch_tokens = 128});
  std::vector<int32_t> other = Prompt(40);
  other[20] = (other[20] + 1) % 64;
  harness.Submit(Greedy(Prompt(40), 5, 2));
  harness.Submit(Greedy(other, 5));  // shares what the first computes in the same step
  harness.Submit(Greedy(Prompt(40), 5));
  harness.model().FailNext(Internal("once"));
  ASSERT_FALSE(harness.engine().Step().ok());
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
  EXPECT_EQ(harness.cache().usage().pages_owned, 0);
  harness.Submit(Greedy(other, 5));
  harness.Submit(Greedy(Prompt(40), 5));
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(3)[0].tokens, harness.GreedyAfter(other, 5));
  EXPECT_EQ(harness.outputs(4)[0].tokens, harness.GreedyAfter(Prompt(40), 5));
}

// --------------------------------------------------------------------------------------------------------------------------
// refusals

TEST(Engine, RefusesImpossibleRequestsByName) {
  EngineHarness harness({.model = {.max_position = 32, .num_pages = 8}});
  const auto message = [&](Request request) {
    const Result<RequestId> id = harness.engine().Submit(std::move(request));
    EXPECT_FALSE(id.ok());
    return id.ok() ? std::string() : id.status().message();
  };
  EXPECT_THAT(message(Greedy({}, 4)), HasSubstr("prompt is empty"));
  EXPECT_THAT(message(Greedy(Prompt(32), 4)), HasSubstr("32 tokens, the context length is 32"));
  EXPECT_THAT(message(Greedy(Prompt(4), 4, 0)), HasSubstr("n is 0"));
  EXPECT_THAT(message(Greedy({1, 64}, 4)), HasSubstr("prompt_ids[1] is 64"));
  EXPECT_THAT(message(Greedy({1}, -1)), HasSubstr("max_tokens is -1"));
  Request request = Greedy({1}, 4);
  request.stop = {"x"};
  EXPECT_THAT(message(request), HasSubstr("tokenizer"));
  request = Greedy({1}, 4);
  request.top_logprobs = 129;
  EXPECT_THAT(message(request), HasSubstr("top_logprobs is 129, expected a number in 0..128"));
  request = Greedy({1}, 4);
  request.sampling.top_p = 0;
  EXPECT_THAT(message(request), HasSubstr("top_p is 0"));
  EXPECT_FALSE(*harness.engine().Step());
}

TEST(Engine, AFullQueueRefuses) {
  EngineHarness harness({.max_waiting = 2});
  harness.Submit(Greedy(Prompt(4), 4));
  harness.Submit(Greedy(Prompt(4), 4));
  const Result<RequestId> third = harness.engine().Submit(Greedy(Prompt(4), 4));
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().code(), StatusCode::kResourceExhausted);
  harness.RunToEnd();
  EXPECT_TRUE(harness.engine().Submit(Greedy(Prompt(4), 4)).ok());
}

TEST(Engine, TheQueueCountsSamples) {
  EngineHarness harness({.max_waiting = 8});
  EXPECT_TRUE(harness.engine().Submit(Greedy(Prompt(4), 4, /*n=*/12)).ok());  // nothing waits
  EXPECT_FALSE(harness.engine().Submit(Greedy(Prompt(4), 4)).ok());
  harness.Step();  // it has begun
  EXPECT_TRUE(harness.engine().Submit(Greedy(Prompt(4), 4, 6)).ok());
  EXPECT_FALSE(harness.engine().Submit(Greedy(Prompt(4), 4, 3)).ok());
  EXPECT_TRUE(harness.engine().Submit(Greedy(Prompt(4), 4, 2)).ok());
  harness.RunToEnd();
  // A request that ends before it begins leaves its places too.
  const RequestId waits = harness.engine().Submit(Greedy(Prompt(4), 4, 8)).value();
  ASSERT_TRUE(harness.engine().Cancel(waits).ok());
  harness.RunToEnd();
  EXPECT_TRUE(harness.engine().Submit(Greedy(Prompt(4), 4)).ok());
  EXPECT_TRUE(harness.engine().Submit(Greedy(Prompt(4), 4, 7)).ok());
  harness.RunToEnd();
}

TEST(Engine, OneNameLeavesRoomInTheQueueForOthers) {
  EngineHarness harness({.max_waiting = 12});
  const auto submit = [&](const std::string& name, int32_t n = 1) {
    Request request = Greedy(Prompt(4), 4, n);
    request.share_of = name;
    return harness.engine().Submit(std::move(request)).ok();
  };
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(submit("alice")) << i;  // no other name asks
  EXPECT_FALSE(submit("alice"));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(submit("bob")) << i;
  EXPECT_FALSE(submit("bob"));  // above half
  EXPECT_FALSE(submit("alice"));
  EXPECT_TRUE(submit("carol", 4));  // a third
  EXPECT_FALSE(submit("carol"));
  EXPECT_FALSE(submit("dave", 4));
  EXPECT_TRUE(submit("dave", 3));
  harness.RunToEnd();
  EXPECT_TRUE(submit("alice", 4));
  EXPECT_TRUE(submit("bob", 6));
  EXPECT_FALSE(submit("alice", 3)) << "above half while another waits";
  EXPECT_TRUE(submit("alice", 2));
  EXPECT_FALSE(submit("alice"));
  harness.RunToEnd();
}

TEST(Engine, EventsReportWhetherTheRequestHadBegun) {
  EngineHarness harness({});
  std::vector<bool> begun;
  const auto submit = [&] {
    Request request = Greedy(Prompt(40), 4);
    request.on_event = [&](const StreamEvent& event) {
      if (event.request_done) begun.push_back(event.begun);
    };
    return harness.engine().Submit(std::move(request)).value();
  };
  submit();
  harness.RunToEnd();
  ASSERT_TRUE(harness.engine().Cancel(submit()).ok());
  harness.RunToEnd();
  const RequestId third = submit();
  harness.Step();
  ASSERT_TRUE(harness.engine().Cancel(third).ok());
  harness.RunToEnd();
  EXPECT_EQ(begun, (std::vector<bool>{true, false, true}));
}

}  // namespace
}  // namespace coppice
