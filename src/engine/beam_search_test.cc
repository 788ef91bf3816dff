// Beam search around a FakeRunner: what it finds is what a search written after transformers' finds with the same model, whatever
// else runs, however little room there is; stochastic beams are a sample without replacement.
#include "engine/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "engine/testing/fake_constraint.h"
#include "engine/validate_request.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;

using Tokens = std::vector<int32_t>;

std::vector<float> LogprobsOf(const std::vector<float>& logits) {
  const float max = std::ranges::max(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  std::vector<float> logprobs;
  for (const float logit : logits) logprobs.push_back(static_cast<float>(logit - max - std::log(sum)));
  return logprobs;
}

struct Found {
  Tokens tokens;
  double score = 0;
  bool operator<(const Found& other) const { return score > other.score; }
};

// GenerationMixin._beam_search of transformers 5.24, for one prompt.
std::vector<Found> Search(const FakeRunner& model, const Request& request, const Tokens& end_ids) {
  const size_t width = static_cast<size_t>(request.beams.width);
  const size_t keep = std::max<size_t>(2, 1 + end_ids.size()) * width;
  std::vector<Found> running{{}}, finished;
  for (int32_t length = 1;; ++length) {
    std::vector<Found> all;
    for (const Found& beam : running) {
      Tokens text = request.prompt_ids;
      text.insert(text.end(), beam.tokens.begin(), beam.tokens.end());
      const std::vector<float> logprobs = LogprobsOf(model.LogitsAfter(text));
      for (size_t token = 0; token < logprobs.size(); ++token) {
        if (length <= request.min_tokens && std::ranges::count(end_ids, static_cast<int32_t>(token)) > 0) continue;
        Found& next = all.emplace_back(beam);
        next.tokens.push_back(static_cast<int32_t>(token));
        next.score += logprobs[token];
      }
    }
    std::ranges::stable_sort(all, std::less<>());
    if (all.size() > keep) all.resize(keep);
    running.clear();
    bool any_goes_on = false;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool ends = length == request.max_tokens || std::ranges::count(end_ids, all[i].tokens.back()) > 0;
      any_goes_on |= !ends;
      if (!ends && running.size() < width) running.push_back(all[i]);
      if (!ends || i >= width) continue;
      finished.push_back(all[i]);
      finished.back().score /= std::pow(length, request.beams.length_penalty);
    }
    std::ranges::stable_sort(finished, std::less<>());
    if (finished.size() > width) finished.resize(width);
    if (!any_goes_on) break;
    if (finished.size() < width) continue;
    if (request.beams.early_stopping == EarlyStopping::kTrue) break;
    const bool never = request.beams.early_stopping == EarlyStopping::kNever && request.beams.length_penalty > 0;
    const double best = running.front().score / std::pow(never ? request.max_tokens : length, request.beams.length_penalty);
    if (best <= finished.back().score) break;
  }
  finished.resize(std::min(finished.size(), static_cast<size_t>(request.n)));
  return finished;
}

Request WithBeams(Tokens prompt, int32_t max_tokens, int32_t width, int32_t n) {
  return {.prompt_ids = std::move(prompt), .n = n, .max_tokens = max_tokens, .beams = {.width = width}};
}

Request RandomSearch(std::mt19937& random) {
  const int32_t width = 1 + static_cast<int32_t>(random() % 6);
  Request request = WithBeams(Prompt(1 + random() % 20, static_cast<int32_t>(random() % 3)),
                              1 + static_cast<int32_t>(random() % 14), width, 1 + static_cast<int32_t>(random() % width));
  request.beams.length_penalty = std::vector<float>{0, 0.5f, 1, 2, -1}[random() % 5];
  request.beams.early_stopping = static_cast<EarlyStopping>(random() % 3);
  request.stop_token_ids = {static_cast<int32_t>(random() % 64), static_cast<int32_t>(random() % 64)};
  if (random() % 2 == 0) request.stop_token_ids.pop_back();
  if (random() % 3 == 0) request.min_tokens = static_cast<int32_t>(random() % (request.max_tokens + 1));
  return request;
}

void ExpectFound(const std::vector<Output>& outputs, const std::vector<Found>& found, const Tokens& end_ids) {
  ASSERT_EQ(outputs.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(outputs[i].tokens, found[i].tokens) << "output " << i;
    ASSERT_TRUE(outputs[i].beam_score.has_value());
    EXPECT_NEAR(*outputs[i].beam_score, found[i].score, 1e-4 * std::max(1.0, std::abs(found[i].score)));
    const bool by_token = std::ranges::count(end_ids, outputs[i].tokens.back()) > 0;
    EXPECT_EQ(outputs[i].reason, by_token ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(outputs[i].logprobs.size(), outputs[i].tokens.size());
  }
}

TEST(Beams, FindWhatTransformersFindsWhateverElseRuns) {
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::mt19937 random(static_cast<uint32_t>(round));
    const int32_t tight = round % 3;  // places, then pages are short
    EngineConfig config{.model = {.max_position = 64, .num_pages = tight == 2 ? 24 : 200, .page_size = 4, .logit_range = 3},
                        .max_running = tight == 1 ? 3 : 24,
                        .max_batch_tokens = round % 4 == 0 ? 6 : 32,
                        .sharing = round % 5 == 4 ? SharingMode::kNone : SharingMode::kTree,
                        .steps_ahead = round % 2,
                        .late_runner = true};
    config.max_batch_tokens = std::max(config.max_batch_tokens, config.max_running);
    if (round % 7 == 3) config.draft = DraftMode::kNgram;
    EngineHarness harness(config);
    std::vector<Request> searches;
    for (int i = 0; i < 3; ++i) {
      searches.push_back(RandomSearch(random));
      if (random() % 2 == 0) searches.back().share_of = "a";
      harness.Submit(searches.back());
      harness.Submit(Greedy(Prompt(5 + i, i), 12, 2));
      harness.Step(static_cast<int>(random() % 6));
    }
    harness.RunToEnd();
    for (size_t i = 0; i < searches.size(); ++i) {
      const std::vector<Found> found = Search(harness.model(), searches[i], searches[i].stop_token_ids);
      ExpectFound(harness.outputs(2 * i), found, searches[i].stop_token_ids);
      EXPECT_TRUE(harness.done(2 * i));
      const size_t length = 5 + i;
      for (const Output& output : harness.outputs(2 * i + 1))
        EXPECT_EQ(output.tokens, harness.GreedyAfter(Prompt(static_cast<int32_t>(length), static_cast<int32_t>(i)), 12));
    }
    EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
    if (HasFailure()) return;
  }
}

// A fork copies the open page alone, and what is not gone on with is free at once: pages of a search are those of its tree.
TEST(Beams, KeepAsManyPagesAsTheirTreeHas) {
  EngineHarness harness({.model = {.max_position = 256, .num_pages = 400, .page_size = 8, .logit_range = 3}, .max_running = 8});
  harness.Submit(WithBeams(Prompt(64), 100, 8, 1));
  for (int step = 0; step < 80; ++step) {
    harness.Step();
    // The prompt, a trunk that all have in common, and behind it what eight beams have of their own: at most all of them, and the
    // open pages that forks copy from.
    EXPECT_LE(harness.cache().usage().pages_in_use, 8 + 8 * (step / 8 + 2));
    EXPECT_EQ(harness.engine().Metrics().last_step.prefill_rows, step == 0 ? 32 : step == 1 ? 32 : 0) << step;
  }
  const KvCache::Usage usage = harness.cache().usage();
  EXPECT_LT(usage.tokens_in_use, usage.pages_unshared * 8 / 3);  // beams have most of their text in common
  harness.RunToEnd();
  EXPECT_EQ(harness.engine().Metrics().preemptions, 0);
}

TEST(Beams, AreRefusedWithWhatTheyDoNotSupport) {
  EngineHarness harness({.model = {.num_pages = 12}, .texts = Letters(26)});
  const auto refusal = [&](const auto& change) {
    Request request = WithBeams(Prompt(3), 4, 4, 2);
    change(&request);
    const Result<RequestId> id = harness.engine().Submit(std::move(request));
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    return id.ok() ? std::string() : id.status().message();
  };
  EXPECT_THAT(refusal([](Request* r) { r->beams.width = 257; }), HasSubstr("beam_width is 257, expected a number in 0..256"));
  EXPECT_THAT(refusal([](Request* r) { r->beams.width = 13; }), HasSubstr("beam_width is 13, expected at most 12"));
  EXPECT_THAT(refusal([](Request* r) { r->n = 5; }), HasSubstr("n is 5, expected at most beam_width, which is 4"));
  EXPECT_THAT(refusal([](Request* r) { r->sampling.repetition_penalty = 1.1f; }), HasSubstr("repetition_penalty is given beside"));
  EXPECT_THAT(refusal([](Request* r) { r->sampling.presence_penalty = 1; }), HasSubstr("presence_penalty is given beside"));
  EXPECT_THAT(refusal([](Request* r) { r->sampling.frequency_penalty = 1; }), HasSubstr("frequency_penalty is given beside"));
  EXPECT_THAT(refusal([](Request* r) { r->sampling.logit_bias = {{1, 1.0f}}; }), HasSubstr("logit_bias is given beside"));
  EXPECT_THAT(refusal([](Request* r) { r->constraint = std::make_shared<ParityConstraint>(64, 40); }), HasSubstr("a constraint"));
  EXPECT_THAT(refusal([](Request* r) { r->stop = {"x"}; }), HasSubstr("end outputs by stop_token_ids"));
  EXPECT_THAT(refusal([](Request* r) { r->top_logprobs = 2; }), HasSubstr("top_logprobs is given beside"));
  EXPECT_THAT(refusal([](Request* r) { r->ranks = true; }), HasSubstr("ranks is given beside"));
  EXPECT_THAT(refusal([](Request* r) { r->keep = true; }), HasSubstr("keep is given beside"));
  EXPECT_THAT(refusal([](Request* r) { r->beams.length_penalty = NAN; }), HasSubstr("length_penalty is nan"));
  EXPECT_THAT(refusal([](Request* r) { r->stop_token_ids.assign(600, 1), r->beams.width = 4; }), HasSubstr("stop_token_ids"));
  EXPECT_THAT(refusal([](Request* r) { r->beams.stochastic = true, r->sampling.temperature = 0; }), HasSubstr("temperature is 0"));
  EXPECT_THAT(refusal([](Request* r) { r->beams.stochastic = true, r->beams.length_penalty = 2; }), HasSubstr("do not go with"));
  const RequestId id = harness.Submit(WithBeams(Prompt(3), 4, 4, 2));
  harness.Step(2);
  EXPECT_THAT(harness.engine().Fork({id, 0}, {}).status().message(), HasSubstr("is an output of a beam search"));
  EXPECT_EQ(harness.engine().Extend({id, 0}, Tokens{1}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(harness.engine().Describe({id, 1}).status().code(), StatusCode::kFailedPrecondition);
  harness.RunToEnd();
}

TEST(Beams, OutputsEndOneByOneOrTogether) {
  EngineHarness harness({.model = {.num_pages = 100, .page_size = 4}});
  const Request request = WithBeams(Prompt(9), 12, 4, 3);
  const RequestId pruned = harness.Submit(request), cancelled = harness.Submit(request), gone = harness.Submit(request);
  harness.Step(5);
  ASSERT_TRUE(harness.engine().Prune({pruned, 1}).ok());
  ASSERT_TRUE(harness.engine().Cancel(cancelled).ok());
  for (int32_t i = 0; i < 3; ++i) ASSERT_TRUE(harness.engine().Prune({gone, i}).ok());
  harness.Step(1);
  EXPECT_TRUE(harness.done(1));
  EXPECT_TRUE(harness.done(2));
  harness.RunToEnd();
  const std::vector<Found> found = Search(harness.model(), request, {});
  EXPECT_EQ(harness.outputs(0)[0].tokens, found[0].tokens);
  EXPECT_EQ(harness.outputs(0)[1].reason, FinishReason::kCancelled);
  EXPECT_EQ(harness.outputs(0)[2].tokens, found[2].tokens);
  for (const Output& output : harness.outputs(1)) EXPECT_EQ(output.reason, FinishReason::kCancelled);
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
}

TEST(Beams, SayWhereThereAreFewerOutputsThanAskedFor) {
  EngineHarness harness({.model = {.vocab_size = 3}});
  harness.Submit(WithBeams({0, 1}, 1, 5, 4));
  harness.Submit(WithBeams({0, 1}, 0, 5, 4));  // a prompt alone
  harness.RunToEnd();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(harness.outputs(0)[i].reason, FinishReason::kLength);
  EXPECT_THAT(harness.outputs(0)[3].status.message(), HasSubstr("the beams found 3 outputs and n is 4"));
  for (const Output& output : harness.outputs(1)) EXPECT_EQ(output.reason, FinishReason::kLength);
  EXPECT_TRUE(harness.done(1));
}

TEST(Beams, TextIsThatOfTheTokens) {
  EngineHarness harness({.model = {.vocab_size = 26}, .texts = Letters(26), .event_thread = true});
  Request request = WithBeams({1, 2, 3}, 8, 4, 4);
  request.stop_token_ids = {5};
  harness.Submit(request);
  harness.RunToEnd();
  for (const Output& output : harness.outputs(0)) {
    std::string text;
    for (const int32_t token : output.tokens) text += token == 5 ? "" : std::string(1, static_cast<char>('a' + token));
    EXPECT_EQ(output.text, text);
  }
}

// ------------------------------------------------------------------------------------------------------------- stochastic beams

// All outputs of a model and their probabilities.
void Enumerate(const FakeRunner& model, const Request& request, int32_t end_id, const Tokens& begun, double probability,
               std::map<Tokens, double>* all) {
  Tokens text = request.prompt_ids;
  text.insert(text.end(), begun.begin(), begun.end());
  std::vector<float> logits = model.LogitsAfter(text);
  for (float& logit : logits) logit /= request.sampling.temperature;
  const std::vector<float> logprobs = LogprobsOf(logits);
  for (int32_t token = 0; std::cmp_less(token, logprobs.size()); ++token) {
    Tokens next = begun;
    next.push_back(token);
    const double its = probability * std::exp(logprobs[token]);
    if (token == end_id || std::ssize(next) == request.max_tokens) {
      (*all)[next] = its;
    } else {
      Enumerate(model, request, end_id, next, its, all);
    }
  }
}

// Of `count` draws without replacement: how probable each output is to be among them.
std::map<Tokens, double> InclusionOf(const std::map<Tokens, double>& probabilities, int count) {
  std::map<Tokens, double> inclusion;
  std::vector<const std::pair<const Tokens, double>*> drawn;
  const auto draw = [&](const auto& self, double probability, double left) -> void {
    if (std::ssize(drawn) == count) {
      for (const auto* one : drawn) inclusion[one->first] += probability;
      return;
    }
    for (const auto& one : probabilities) {
      if (std::ranges::count(drawn, &one) > 0) continue;
      drawn.push_back(&one);
      self(self, probability * one.second / left, left - one.second);
      drawn.pop_back();
    }
  };
  draw(draw, 1, 1);
  return inclusion;
}

TEST(StochasticBeams, AreASampleWithoutReplacement) {
  EngineHarness harness({.model = {.vocab_size = 4, .num_pages = 200, .page_size = 4, .logit_range = 3}, .max_running = 12});
  Request request = WithBeams({1, 2, 3}, 3, 3, 3);
  request.stop_token_ids = {2};
  request.beams.stochastic = true;
  request.sampling.temperature = 1.5f;
  std::map<Tokens, double> probabilities;
  Enumerate(harness.model(), request, 2, {}, 1, &probabilities);
  ASSERT_EQ(probabilities.size(), 1 + 3 + 9 * 4);
  const std::map<Tokens, double> inclusion = InclusionOf(probabilities, 3);
  constexpr int kRounds = 6000;
  std::map<Tokens, int> first, among;
  for (int round = 0; round < kRounds; ++round) {
    request.sampling.seed = static_cast<uint64_t>(round);
    harness.Submit(request);
    if (round % 4 == 3) harness.RunToEnd();
    if (HasFailure()) return;
  }
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<Output>& outputs = harness.outputs(static_cast<size_t>(round));
    ++first[outputs[0].tokens];
    for (size_t i = 0; i < outputs.size(); ++i) {
      ++among[outputs[i].tokens];
      double sum = 0;
      for (const float logprob : outputs[i].logprobs) sum += logprob;
      ASSERT_NEAR(std::exp(sum), probabilities.at(outputs[i].tokens), 1e-5);
      if (i > 0) {
        ASSERT_GT(*outputs[i - 1].beam_score, *outputs[i].beam_score);
        ASSERT_NE(outputs[i - 1].tokens, outputs[i].tokens);
      }
    }
  }
  // Each count is binomial: of 40 outputs, none is five standard deviations off but once in 40,000 seeds, and the squares of all
  // add up to about their number.
  double chi_first = 0;
  for (const auto& [tokens, probability] : probabilities) {
    const double part = inclusion.at(tokens), expected = kRounds * part;
    EXPECT_NEAR(among[tokens], expected, 5 * std::sqrt(expected * (1 - part)) + 1) << ::testing::PrintToString(tokens);
    chi_first += std::pow(first[tokens] - kRounds * probability, 2) / (kRounds * probability);
  }
  EXPECT_LT(chi_first, 39 + 5 * std::sqrt(2 * 39.0));  // the first one is a draw of the model
}

TEST(StochasticBeams, DependOnTheSeedAloneAndNotOnWhatElseRuns) {
  Request request = WithBeams(Prompt(11), 10, 5, 5);
  request.beams.stochastic = true;
  request.sampling = {.temperature = 0.8f, .seed = 3};
  std::vector<std::vector<Tokens>> found;
  for (const int others : {0, 3}) {
    EngineHarness harness({.model = {.num_pages = 40, .page_size = 4}, .max_running = others == 0 ? 8 : 4});
    harness.Submit(request);
    for (int i = 0; i < others; ++i) harness.Submit(Greedy(Prompt(20, i), 9));
    harness.RunToEnd();
    found.emplace_back();
    for (const Output& output : harness.outputs(0)) found.back().push_back(output.tokens);
  }
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace coppice
