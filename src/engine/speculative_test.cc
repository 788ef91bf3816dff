// Speculative decoding around the fake model: drafts change how many steps a text takes, never the text (or, with a draft model's
// proposals, never its distribution), whatever is shared, preempted, cancelled or stopped in the middle of an accepted run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/draft_gain.h"
#include "engine/testing/engine_harness.h"
#include "runner/testing/chi_square.h"

namespace coppice {
namespace {

struct Drafting {
  const char* name;
  DraftMode mode = DraftMode::kNone;
  int32_t branches = 1;
  uint64_t seed = 0;
  bool exact = false;
};
// Those whose text is that without drafts, sampled text too.
constexpr Drafting kExact[] = {{"n-gram linear", DraftMode::kNgram},
                               {"n-gram tree", DraftMode::kNgram, 3},
                               {"the same model", DraftMode::kModel, 1, 0, true},
                               {"another model", DraftMode::kModel, 1, 9, true}};
constexpr Drafting kProposing[] = {{"the same model, proposing", DraftMode::kModel, 1, 0},
                                   {"another model, proposing", DraftMode::kModel, 1, 9}};

EngineConfig With(EngineConfig config, const Drafting& drafting, DraftPolicy policy = DraftPolicy::kAlways) {
  config.draft = drafting.mode;
  config.draft_policy = policy;
  config.draft_branches = drafting.branches;
  config.draft_seed = drafting.seed;
  config.exact_drafts = drafting.exact;
  return config;
}

// A model that looks at two tokens only: its greedy text runs into a cycle, and its sampled text repeats itself now and then.
FakeRunner::Options Repetitive(int32_t vocab_size = 8) {
  return {.vocab_size = vocab_size, .num_pages = 256, .logit_range = 4.0f, .memory = 2};
}

std::vector<int32_t> SmallPrompt(int32_t length, int32_t vocab_size = 8) {
  std::vector<int32_t> prompt = Prompt(length);
  for (int32_t& token : prompt) token %= vocab_size;
  return prompt;
}

void ExpectEqual(const std::vector<Output>& outputs, const std::vector<Output>& expected) {
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << "sample " << i;
    EXPECT_EQ(outputs[i].logprobs, expected[i].logprobs) << "sample " << i;
    EXPECT_EQ(outputs[i].text, expected[i].text) << "sample " << i;
    EXPECT_EQ(outputs[i].reason, expected[i].reason) << "sample " << i;
  }
}

TEST(Speculative, GreedyTextIsThatWithoutDraftsInEveryModeAndPageSize) {
  std::vector<Drafting> draftings(std::begin(kExact), std::end(kExact));
  draftings.insert(draftings.end(), std::begin(kProposing), std::end(kProposing));
  for (const Drafting& drafting : draftings) {
    for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kOneLevel, SharingMode::kStore, SharingMode::kNone}) {
      for (const int32_t page_size : {1, 4, 16}) {
        for (const int32_t length : {1, 15, 16, 17}) {
          SCOPED_TRACE(std::string(drafting.name) + ", " + std::string(Name(sharing)) + ", page " + std::to_string(page_size) +
                       ", prompt " + std::to_string(length));
          EngineConfig config{.model = Repetitive(), .max_batch_tokens = 64, .sharing = sharing};
          config.model.page_size = page_size;
          config.model.num_pages = 2048 / page_size;
          EngineHarness harness(With(config, drafting));
          harness.Submit(Greedy(SmallPrompt(length), 40, 5));
          harness.RunToEnd();
          const std::vector<int32_t> expected = harness.GreedyAfter(SmallPrompt(length), 40);
          for (const Output& output : harness.outputs(0)) {
            EXPECT_EQ(output.tokens, expected);
            EXPECT_EQ(output.reason, FinishReason::kLength);
          }
          const EngineMetrics metrics = harness.engine().Metrics();
          EXPECT_GT(metrics.drafted_tokens, 0);
          EXPECT_EQ(metrics.sample_steps + metrics.accepted_draft_tokens, 5 * 39);
          if (drafting.mode == DraftMode::kNgram) {
            EXPECT_GT(metrics.accepted_draft_tokens, 5 * 10);  // the cycle
          } else if (drafting.seed == 0) {
            EXPECT_EQ(metrics.accepted_draft_tokens, metrics.drafted_tokens);
            EXPECT_LT(metrics.sample_steps, 5 * 39 / 3);
          }
          EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
        }
      }
    }
  }
}

// Six samples that say the same, two at a time: what the first two say is what the others are asked to verify. A sample alone finds
// nothing of that kind in its own text, whose tokens are all different pairs.
TEST(Speculative, SamplesDraftWhatTheirSiblingsHaveSaid) {
  std::vector<int64_t> steps;
  for (const int32_t n : {1, 6}) {
    EngineHarness harness(With({.model = {.vocab_size = 64}, .max_running = 2, .max_batch_tokens = 64}, kExact[0]));
    harness.Submit(Greedy(Prompt(12), 40, n));
    harness.RunToEnd();
    for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.tokens, harness.GreedyAfter(Prompt(12), 40));
    const EngineMetrics metrics = harness.engine().Metrics();
    EXPECT_EQ(metrics.sample_steps + metrics.accepted_draft_tokens, n * 39);
    steps.push_back(metrics.sample_steps);
  }
  EXPECT_GT(steps[0], 35);                     // of 39 tokens
  EXPECT_LT(steps[1], 2 * steps[0] + 4 * 15);  // four are done in linear drafts of up to four tokens
}

TEST(Speculative, SiblingsThatWerePrunedAreNotLookedAt) {
  EngineHarness harness(With({.model = {.vocab_size = 64, .num_pages = 200}, .max_running = 3, .max_batch_tokens = 64}, kExact[1]));
  const RequestId id = harness.Submit(Greedy(Prompt(12), 30, 6));
  for (int32_t i = 0; i < 4; ++i) {
    harness.Step(6);
    (void)harness.engine().Prune({id, i});
    if (::testing::Test::HasFailure()) return;
  }
  harness.RunToEnd();
  for (const int32_t i : {4, 5}) EXPECT_EQ(harness.outputs(0)[i].tokens, harness.GreedyAfter(Prompt(12), 30));
}

TEST(Speculative, TreesThatBecomeLinearWithPromptsAreCounted) {
  const EngineConfig config = With({.model = Repetitive(), .max_batch_tokens = 64}, kExact[1]);
  EngineHarness alone(config), beside(config);
  for (EngineHarness* const harness : {&alone, &beside}) {
    Request request{.prompt_ids = SmallPrompt(60), .n = 4, .max_tokens = 200};
    request.sampling.temperature = 1;
    harness->Submit(request);
  }
  alone.RunToEnd();
  EXPECT_EQ(alone.engine().Metrics().draft_trees_cut, 0);
  for (int32_t i = 0; i < 20; ++i) {  // new prompts in every other step
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(beside.engine().Step().ok());
    beside.Submit(Greedy(SmallPrompt(40), 1, 1));
  }
  beside.RunToEnd();
  EXPECT_GT(beside.engine().Metrics().draft_trees_cut, 0);
}

// Every parameter and every ending, in the middle of accepted runs too.
TEST(Speculative, SampledTextIsThatWithoutDraftsWhateverTheParameters) {
  std::vector<Request> requests;
  const auto add = [&](auto edit) {
    Request request{.prompt_ids = SmallPrompt(20), .n = 6, .max_tokens = 48};
    request.sampling.seed = 40 + requests.size();
    request.sampling.temperature = 0.35f;
    edit(request);
    requests.push_back(request);
  };
  add([](Request&) {});
  add([](Request& r) { r.sampling.temperature = 1; });
  add([](Request& r) { r.sampling.top_p = 0.8f, r.sampling.min_p = 0.05f; });
  add([](Request& r) { r.sampling.top_k = 3, r.sampling.temperature = 0.8f; });
  add([](Request& r) { r.sampling.frequency_penalty = 0.2f, r.sampling.presence_penalty = 0.1f; });
  add([](Request& r) { r.sampling.repetition_penalty = 1.2f; });
  add([](Request& r) { r.sampling.temperature = 0, r.sampling.frequency_penalty = 0.3f, r.sampling.repetition_penalty = 1.1f; });
  add([](Request& r) { r.sampling.logit_bias = {{3, 1.0f}, {4, -INFINITY}}; });
  add([](Request& r) { r.stop_token_ids = {5}; });
  add([](Request& r) { r.stop_token_ids = {5, 6}, r.min_tokens = 17; });
  add([](Request& r) { r.max_tokens = 3; });
  add([](Request& r) { r.max_tokens = 1; });
  add([](Request& r) { r.stop = {"abc", "hg"}; });
  add([](Request& r) { r.stop = {"ab", "cd", "ef"}, r.min_tokens = 9; });
  EngineConfig config{.model = Repetitive(), .max_batch_tokens = 64, .texts = Letters(8)};
  for (const Request& request : requests) {
    EngineHarness plain(config);
    plain.Submit(request);
    plain.RunToEnd();
    for (const Drafting& drafting : kExact) {
      SCOPED_TRACE(std::string(drafting.name) + ", seed " + std::to_string(request.sampling.seed));
      EngineHarness harness(With(config, drafting));
      harness.Submit(request);
      harness.RunToEnd();
      ExpectEqual(harness.outputs(0), plain.outputs(0));
      EXPECT_LE(harness.engine().Metrics().sample_steps, plain.engine().Metrics().sample_steps);
      EXPECT_EQ(harness.engine().Metrics().generated_tokens, plain.engine().Metrics().generated_tokens);
    }
  }
}

TEST(Speculative, TheContextLengthEndsAnAcceptedRun) {
  for (const Drafting& drafting : kExact) {
    EngineConfig config{.model = Repetitive()};
    config.model.max_position = 30;
    EngineHarness harness(With(config, drafting));
    harness.Submit(Greedy(SmallPrompt(9), 1000));
    harness.RunToEnd();
    EXPECT_EQ(harness.outputs(0)[0].tokens, harness.GreedyAfter(SmallPrompt(9), 21)) << drafting.name;
    EXPECT_EQ(harness.outputs(0)[0].reason, FinishReason::kLength);
  }
}

// The probability of each next token under the parameters that the test below uses, from the model's logits.
std::vector<double> NextDistribution(const FakeRunner& model, const SamplingParams& params, const std::vector<int32_t>& history,
                                     size_t prompt) {
  const std::vector<float> logits = model.LogitsAfter(history);
  std::vector<double> p(logits.begin(), logits.end());
  for (size_t i = prompt; i < history.size(); ++i) p[history[i]] -= params.frequency_penalty;
  std::vector<double> sorted = p;
  std::ranges::sort(sorted, std::greater<>());
  const double least = params.top_k > 0 ? sorted[params.top_k - 1] : -INFINITY;
  double sum = 0;
  for (double& value : p) sum += value = value < least ? 0 : std::exp((value - sorted[0]) / params.temperature);
  for (double& value : p) value /= sum;
  return p;
}

TEST(Speculative, AcceptanceKeepsTheDistribution) {
  constexpr int32_t kVocab = 5, kLength = 4, kSamples = 24000, kTogether = 60;
  const FakeRunner::Options model_options{.vocab_size = kVocab, .num_pages = 512, .logit_range = 3.0f};
  const std::vector<int32_t> prompt = {1, 2, 1, 2};
  for (const Drafting& drafting : {kProposing[0], kProposing[1], kExact[0], kExact[3]}) {
    for (const SamplingParams& base :
         {SamplingParams{}, SamplingParams{.temperature = 0.7f, .top_k = 4, .frequency_penalty = 0.6f}}) {
      SCOPED_TRACE(std::string(drafting.name) + ", temperature " + std::to_string(base.temperature));
      EngineHarness harness(With({.model = model_options, .max_running = kTogether, .max_batch_tokens = 6 * kTogether}, drafting));
      const FakeRunner& model = harness.model();
      std::map<std::vector<int32_t>, int64_t> counted;
      for (int32_t i = 0; i < kSamples / kTogether; ++i) {
        Request request{.prompt_ids = prompt, .n = kTogether, .max_tokens = kLength + 1, .sampling = base};
        request.sampling.seed = static_cast<uint64_t>(i);
        harness.Submit(request);
        while (*harness.engine().Step()) {
        }
        for (const Output& output : harness.outputs(i)) {
          ++counted[{output.tokens.begin(), output.tokens.begin() + kLength}];
        }
      }
      // Exact probabilities of all texts of kLength tokens.
      std::vector<std::pair<std::vector<int32_t>, double>> texts = {{prompt, 1.0}};
      for (int32_t i = 0; i < kLength; ++i) {
        std::vector<std::pair<std::vector<int32_t>, double>> longer;
        for (const auto& [history, probability] : texts) {
          const std::vector<double> next = NextDistribution(model, base, history, prompt.size());
          for (int32_t token = 0; token < kVocab; ++token) {
            longer.emplace_back(history, probability * next[token]);
            longer.back().first.push_back(token);
          }
        }
        texts = std::move(longer);
      }
      std::vector<int64_t> counts;
      std::vector<double> probabilities;
      for (const auto& [history, probability] : texts) {
        counts.push_back(counted[{history.begin() + static_cast<int64_t>(prompt.size()), history.end()}]);
        probabilities.push_back(probability);
      }
      EXPECT_LT(ChiSquareDeviations(counts, probabilities), 5);
      // Another distribution does not pass: the test can fail.
      std::ranges::rotate(probabilities, probabilities.begin() + 1);
      EXPECT_GT(ChiSquareDeviations(counts, probabilities), 50);
      const EngineMetrics metrics = harness.engine().Metrics();
      EXPECT_GT(metrics.accepted_draft_tokens, 0);
      if (drafting.seed != 0) {
        EXPECT_LT(metrics.accepted_draft_tokens, metrics.drafted_tokens);
      }
    }
  }
}

TEST(Speculative, ProposedTextIsReproducible) {
  std::vector<std::vector<int32_t>> first;
  for (int run = 0; run < 2; ++run) {
    EngineHarness harness(With({.model = Repetitive()}, kProposing[1]));
    Request request{.prompt_ids = SmallPrompt(12), .n = 3, .max_tokens = 30};
    request.sampling.seed = 5;
    harness.Submit(request);
    harness.RunToEnd();
    std::vector<std::vector<int32_t>> tokens;
    for (const Output& output : harness.outputs(0)) tokens.push_back(output.tokens);
    if (run == 0) first = tokens;
    EXPECT_EQ(tokens, first);
  }
}

TEST(Speculative, AFollowUpTurnFindsTheAcceptedTokens) {
  for (const Drafting& drafting : kExact) {
    SCOPED_TRACE(drafting.name);
    EngineHarness harness(With({.model = Repetitive(), .max_batch_tokens = 64}, drafting));
    harness.Submit(Greedy(SmallPrompt(20), 30));
    harness.RunToEnd();
    std::vector<int32_t> turn = SmallPrompt(20);
    const std::vector<int32_t> answer = harness.outputs(0)[0].tokens;
    turn.insert(turn.end(), answer.begin(), answer.end());
    turn.push_back(3);
    harness.Submit(Greedy(turn, 9));
    harness.RunToEnd();
    EXPECT_EQ(harness.engine().Metrics().cached_tokens, 49);  // all but the last, which was never computed
    EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(turn, 9));
  }
}

TEST(Speculative, SurvivesPreemptionAndCancellation) {
  for (const Drafting& drafting : kExact) {
    SCOPED_TRACE(drafting.name);
    for (const auto& [small_budget, policy] : {std::pair(false, DraftPolicy::kAlways), std::pair(true, DraftPolicy::kAlways),
                                               std::pair(false, DraftPolicy::kMeasured), std::pair(true, DraftPolicy::kMeasured)}) {
      EngineConfig config{.model = Repetitive(), .max_running = 6, .max_batch_tokens = small_budget ? 9 : 64};
      config.model.page_size = 4;
      config.model.num_pages = 28;
      config.model.max_position = 128;
      EngineHarness harness(With(config, drafting, policy));
      std::mt19937 random(3);
      std::vector<Request> requests;
      std::vector<RequestId> ids;
      for (int i = 0; i < 60; ++i) {
        Request request = Greedy(SmallPrompt(1 + random() % 30), 1 + random() % 40, 1 + random() % 3);
        request.prompt_ids.back() = random() % 8;
        requests.push_back(request);
        ids.push_back(harness.Submit(request));
        if (random() % 4 == 0) (void)harness.engine().Cancel(ids[random() % ids.size()]);
        harness.Step(static_cast<int>(random() % 4));
      }
      harness.RunToEnd();
      int finished = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        const std::vector<int32_t> expected = harness.GreedyAfter(requests[i].prompt_ids, requests[i].max_tokens);
        for (const Output& output : harness.outputs(i)) {
          ASSERT_LE(output.tokens.size(), expected.size());
          EXPECT_TRUE(std::equal(output.tokens.begin(), output.tokens.end(), expected.begin()));
          finished += output.reason == FinishReason::kLength && output.tokens == expected;
        }
      }
      EXPECT_GT(finished, 40);
      if (policy == DraftPolicy::kAlways) {  // else how many is up to the clock
        EXPECT_GT(harness.engine().Metrics().preemptions, 0);
        EXPECT_GT(harness.engine().Metrics().accepted_draft_tokens, 0);
      }
      EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
      harness.cache().DropCached();
      EXPECT_EQ(harness.cache().usage().pages_owned, 0);
      if (harness.draft_cache()) {
        EXPECT_EQ(harness.draft_cache()->usage().pages_in_use, 0);
      }
    }
  }
}

// Drafting goes on and off by the clock, and with it steps are launched ahead or not; no text shows it.
TEST(Speculative, MeasuredDraftingChangesNoText) {
  for (const Drafting& drafting : kExact) {
    for (const int32_t steps_ahead : {0, 1}) {
      SCOPED_TRACE(std::string(drafting.name) + ", steps ahead " + std::to_string(steps_ahead));
      EngineConfig config{.model = Repetitive(), .max_batch_tokens = 64, .steps_ahead = steps_ahead};
      config.model.max_position = 1024;
      config.model.num_pages = 512;
      EngineHarness harness(With(config, drafting, DraftPolicy::kMeasured));
      harness.Submit(Greedy(SmallPrompt(20), 800, 3));
      harness.RunToEnd();
      const std::vector<int32_t> expected = harness.GreedyAfter(SmallPrompt(20), 800);
      for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.tokens, expected);
      const EngineMetrics metrics = harness.engine().Metrics();
      EXPECT_GE(metrics.undrafted_steps, DraftGain::BlockSteps(3));  // a trial has both
      EXPECT_GT(metrics.drafted_tokens, 0);
      if (harness.draft_cache()) {
        EXPECT_EQ(harness.draft_cache()->usage().pages_in_use, 0);
      }
    }
  }
}

// Where drafts are refused they get shorter; where they are accepted, longer.
TEST(Speculative, DraftsGoAsDeepAsTheySaveTime) {
  EngineHarness refused(With({.model = {.num_pages = 128}, .draft_tokens = 8}, kExact[3]));  // two models that never agree
  refused.Submit(Greedy(Prompt(10), 40));
  refused.RunToEnd();
  EXPECT_LT(refused.engine().Metrics().drafted_tokens, 8 + 2 * 38);
  EngineHarness accepted(With({.model = {.num_pages = 128}, .draft_tokens = 8}, kExact[2]));
  accepted.Submit(Greedy(Prompt(10), 1 + 9 * 4));
  accepted.RunToEnd();
  EXPECT_EQ(accepted.engine().Metrics().sample_steps, 4);
}

TEST(Speculative, AFailedDraftModelEndsWhatItDraftedFor) {
  EngineHarness harness(With({.model = Repetitive(), .max_batch_tokens = 64}, kProposing[0]));
  harness.Submit(Greedy(SmallPrompt(20), 40, 2));
  harness.Step(2);
  harness.Submit(Greedy(SmallPrompt(30), 12));
  harness.draft_model().FailNext(Internal("the draft device is gone"));
  const Result<bool> step = harness.engine().Step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.status().message(), "the draft device is gone");
  for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.reason, FinishReason::kError);
  EXPECT_EQ(harness.draft_cache()->usage().pages_in_use, 0);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].tokens, harness.GreedyAfter(SmallPrompt(30), 12));
}

TEST(Speculative, PromptsGoBeforeDrafts) {
  EngineHarness harness(With({.model = Repetitive(), .max_batch_tokens = 12, .draft_tokens = 8}, kExact[0]));
  harness.Submit(Greedy(SmallPrompt(12), 120));
  harness.Step(3);
  Request long_prompt = Greedy(SmallPrompt(100), 3);
  long_prompt.prompt_ids[0] ^= 1;
  harness.Submit(long_prompt);
  harness.Step(13);
  EXPECT_GE(harness.engine().Metrics().prefilled_tokens, 12 + 13 * 6);  // at least half of what decoding leaves
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(0)[0].tokens, harness.GreedyAfter(SmallPrompt(12), 120));
  EXPECT_LE(harness.model().largest_batch(), 12);
}

}  // namespace
}  // namespace coppice
