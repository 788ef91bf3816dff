#include "runner/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/thread_pool.h"
#include "runner/philox.h"
#include "runner/testing/chi_square.h"

namespace coppice {
namespace {

std::vector<float> RandomLogits(int32_t vocab, uint32_t seed, float scale = 3.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Draws `count` tokens at positions 0 .. count - 1.
std::vector<TokenDraw> DrawMany(const std::vector<float>& logits, const SamplingParams& params, int32_t count,
                                SampleTask context = {}) {
  ThreadPool pool(1);
  Sampler sampler(&pool, static_cast<int32_t>(logits.size()));
  std::vector<TokenDraw> draws(count);
  std::vector<SampleTask> tasks(count, context);
  for (int32_t i = 0; i < count; ++i) {
    tasks[i].logits = logits;
    tasks[i].params = &params;
    tasks[i].position = i;
    tasks[i].draws = std::span(draws).subspan(i, 1);
  }
  sampler.Run(tasks, {});
  return draws;
}

// The distribution after temperature, top_k, top_p and min_p, by sorting everything.
std::vector<double> NaiveDistribution(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    weights[i] = std::exp((logits[i] - logits[order[0]]) / static_cast<double>(params.temperature));
  size_t keep = params.top_k > 0 ? std::min<size_t>(params.top_k, order.size()) : order.size();
  if (params.top_p < 1) {
    double total = 0, mass = 0;
    for (size_t i = 0; i < keep; ++i) total += weights[order[i]];
    size_t nucleus = 0;
    while (nucleus < keep && (nucleus == 0 || mass < params.top_p * total)) mass += weights[order[nucleus++]];
    keep = nucleus;
  }
  while (keep > 1 && weights[order[keep - 1]] < params.min_p) --keep;
  std::vector<double> distribution(logits.size());
  double total = 0;
  for (size_t i = 0; i < keep; ++i) total += weights[order[i]];
  for (size_t i = 0; i < keep; ++i) distribution[order[i]] = weights[order[i]] / total;
  return distribution;
}

void ExpectDistribution(const std::vector<float>& logits, const SamplingParams& params, int32_t count) {
  const std::vector<double> expected = NaiveDistribution(logits, params);
  std::vector<int32_t> counts(logits.size());
  for (const TokenDraw& draw : DrawMany(logits, params, count)) ++counts[draw.token];
  for (size_t v = 0; v < logits.size(); ++v) {
    if (expected[v] == 0) {
      EXPECT_EQ(counts[v], 0) << "token " << v << " was filtered out";
    } else {  // five standard deviations of a binomial count
      EXPECT_NEAR(counts[v], count * expected[v], 5 * std::sqrt(count * expected[v] * (1 - expected[v])) + 1) << "token " << v;
    }
  }
}

TEST(Philox, GivesThePublishedAnswers) {  // known answers of the authors' library (Random123, kat_vectors)
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualLogits) {
  std::vector<float> logits(1000, -1.0f);
  logits[400] = logits[700] = 2.0f;
  EXPECT_EQ(DrawMany(logits, {.temperature = 0}, 1)[0].token, 400);
}

TEST(Sampler, LogprobIsTheModelsWhateverTheParameters) {
  const std::vector<float> logits = RandomLogits(777, 1);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (const SamplingParams& params : {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 0.3f, .top_k = 5}}) {
    const TokenDraw draw = DrawMany(logits, params, 1)[0];
    EXPECT_NEAR(draw.logprob, logits[draw.token] - std::log(sum), 1e-5);
  }
}

// Processed log-probabilities and ranks are those of the naive distribution, for every way to draw.
TEST(Sampler, ProcessedLogprobsAreOfTheDistributionThatIsDrawnFrom) {
  constexpr int32_t kVocab = 700;
  const std::vector<float> logits = RandomLogits(kVocab, 11, 2.0f);
  const std::vector<float> noise = RandomLogits(kVocab, 12, 1.0f);
  for (SamplingParams params :
       {SamplingParams{}, SamplingParams{.temperature = 0.6f}, SamplingParams{.temperature = 1.4f, .top_k = 9},
        SamplingParams{.top_p = 0.7f}, SamplingParams{.min_p = 0.05f},
        SamplingParams{.temperature = 0.8f, .top_p = 0.9f, .top_k = 40}, SamplingParams{.temperature = 0, .top_k = 3},
        SamplingParams{.temperature = 0.9f, .logit_bias = {{5, 9.0f}, {6, -INFINITY}}},
        SamplingParams{.temperature = 0, .logit_bias = {{5, 9.0f}}}}) {
    SCOPED_TRACE(testing::Message() << params.temperature << " " << params.top_k << " " << params.top_p << " " << params.min_p);
    params.logprobs_mode = LogprobsMode::kProcessed;
    std::vector<float> biased = logits;
    for (const auto& [token, bias] : params.logit_bias) biased[token] = std::max(biased[token] + bias, -1e30f);
    SamplingParams plain = params;
    if (params.temperature == 0) plain = {};
    const std::vector<double> expected = NaiveDistribution(biased, plain);
    std::vector<float> other_logits(logits);  // of a draft: the draw is of `params` all the same
    for (int32_t i = 0; i < kVocab; ++i) other_logits[i] += noise[i];
    const std::vector<double> draft = NaiveDistribution(other_logits, {});
    const std::vector<float> proposal(draft.begin(), draft.end());
    for (const bool drafted : {false, true}) {
      std::vector<TokenLogprob> top(128);
      SampleTask context{.wants_rank = true, .top_logprobs = top};
      if (drafted && params.temperature > 0) {
        context.proposal = proposal;
        context.draft = 17;
      }
      for (const TokenDraw& draw : DrawMany(logits, params, 20, context)) {
        ASSERT_GT(expected[draw.token], 0);
        EXPECT_NEAR(draw.logprob, std::log(expected[draw.token]), 2e-5);
        int32_t rank = 1;
        for (int32_t i = 0; i < kVocab; ++i) rank += biased[i] > biased[draw.token];
        EXPECT_EQ(draw.rank, rank);
      }
      std::vector<int32_t> order(kVocab);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater<>(), [&](int32_t token) { return expected[token]; });
      for (size_t i = 0; i < top.size(); ++i) {
        if (expected[order[i]] == 0) {
          EXPECT_EQ(top[i].token, -1);
        } else {
          EXPECT_EQ(top[i].token, order[i]);
          EXPECT_NEAR(top[i].logprob, std::log(expected[order[i]]), 2e-5);
        }
      }
    }
  }
}

TEST(Sampler, RanksCountWhatIsMoreProbable) {
  const std::vector<float> logits = {1, 3, 2, 3, -INFINITY, 2};
  ThreadPool pool(1);
  Sampler sampler(&pool, 6);
  std::vector<Score> scores;
  for (int32_t token = 0; token < 6; ++token) scores.push_back({.token = token, .wants_rank = token != 2});
  std::vector<float> logprobs(6);
  std::vector<int32_t> ranks(6);
  sampler.Run({}, std::vector<ScoreTask>{{.logits = logits, .scores = scores, .logprobs = logprobs, .ranks = ranks}});
  EXPECT_EQ(ranks, (std::vector<int32_t>{5, 1, 0, 2, 6, 4}));
  // At another temperature.
  std::vector<TokenLogprob> top(3);
  for (Score& score : scores) score.temperature = 0.5f;
  sampler.Run(
      {}, std::vector<ScoreTask>{{.logits = logits, .scores = scores, .logprobs = logprobs, .ranks = ranks, .top_logprobs = top}});
  double sum = 0;
  for (const float logit : logits) sum += std::exp(2.0 * logit);
  for (int32_t token = 0; token < 4; ++token) EXPECT_NEAR(logprobs[token], 2.0 * logits[token] - std::log(sum), 1e-5);
  EXPECT_EQ(top[2].token, 2);
  EXPECT_NEAR(top[2].logprob, 4 - std::log(sum), 1e-5);
  EXPECT_EQ(ranks, (std::vector<int32_t>{5, 1, 0, 2, 6, 4}));
  // Raw: of the model, whatever bias chose the token.
  const SamplingParams params{.temperature = 0, .logit_bias = {{0, 9.0f}}};
  EXPECT_EQ(DrawMany(logits, params, 1, {.wants_rank = true})[0].rank, 5);
  EXPECT_EQ(DrawMany(logits, params, 1)[0].rank, 0);
}

TEST(Sampler, PlainTemperatureFollowsTheSoftmax) {
  ExpectDistribution(RandomLogits(600, 2, 1.0f), {}, 30000);
  ExpectDistribution(RandomLogits(600, 3), {.temperature = 0.7f}, 30000);
}

TEST(Sampler, FiltersFollowTheSortedDistribution) {
  const std::vector<float> logits = RandomLogits(600, 4, 1.5f);
  ExpectDistribution(logits, {.top_k = 7}, 20000);
  ExpectDistribution(logits, {.top_p = 0.5f}, 20000);
  ExpectDistribution(logits, {.min_p = 0.1f}, 20000);
  ExpectDistribution(logits, {.temperature = 1.3f, .top_p = 0.8f, .top_k = 20, .min_p = 0.05f}, 20000);
  ExpectDistribution(logits, {.top_k = 100000}, 20000);
  ExpectDistribution(std::vector<float>(300, 0.0f), {.top_k = 5}, 5000);  // ties: the lowest ids
}

TEST(Sampler, FiltersOfALargeVocabularyKeepWhatSortingKeeps) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const std::vector<float> logits = RandomLogits(49152, seed, 0.5f + seed);
    for (const SamplingParams& params :
         {SamplingParams{.top_k = 40}, SamplingParams{.top_p = 0.9f}, SamplingParams{.top_k = 500}, SamplingParams{.min_p = 0.02f},
          SamplingParams{.temperature = 0.5f, .top_p = 0.95f, .top_k = 64}}) {
      const std::vector<double> expected = NaiveDistribution(logits, params);
      for (const TokenDraw& draw : DrawMany(logits, params, 50)) EXPECT_GT(expected[draw.token], 0);
    }
  }
}

TEST(Sampler, PenaltiesAndBiasMoveLogits) {
  std::vector<float> logits(100, 0.0f);
  logits[1] = 2.0f;
  logits[2] = 1.9f;
  logits[3] = -1.0f;
  TokenCounts prompt, generated;
  prompt.Add(2);
  generated.Add(1, &prompt);
  generated.Add(1, &prompt);
  const auto greedy = [&](SamplingParams params, std::vector<int32_t> banned = {}) {
    params.temperature = 0;
    return DrawMany(logits, params, 1, {.prompt = &prompt, .generated = &generated, .banned = banned})[0].token;
  };
  EXPECT_EQ(greedy({}), 1);
  EXPECT_EQ(greedy({.presence_penalty = 0.05f}), 1);
  EXPECT_EQ(greedy({.presence_penalty = 0.2f}), 2);
  EXPECT_EQ(greedy({.frequency_penalty = 0.06f}), 2);  // twice
  EXPECT_EQ(greedy({.repetition_penalty = 1.5f}), 1);  // 2.0 / 1.5 against 1.9 / 1.5: the prompt counts too
  EXPECT_EQ(greedy({.repetition_penalty = 1.5f, .logit_bias = {{2, 1.0f}}}), 2);
  EXPECT_EQ(greedy({.logit_bias = {{3, 10.0f}}}), 3);
  EXPECT_EQ(greedy({.logit_bias = {{1, -INFINITY}}}), 2);
  EXPECT_EQ(greedy({}, {1, 2}), 0);
}

// Penalties as their definitions say, from the whole text.
std::vector<float> NaivelyPenalized(std::vector<float> logits, const SamplingParams& params, const std::vector<int32_t>& prompt,
                                    const std::vector<int32_t>& generated) {
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(generated.begin(), generated.end());
  for (const int32_t token : seen) logits[token] *= logits[token] > 0 ? 1 / params.repetition_penalty : params.repetition_penalty;
  for (const int32_t token : std::set<int32_t>(generated.begin(), generated.end())) logits[token] -= params.presence_penalty;
  for (const int32_t token : generated) logits[token] -= params.frequency_penalty;
  return logits;
}

TEST(Sampler, PenaltiesCountTextAndDraftsAsTheyGrow) {
  constexpr int32_t kVocab = 300;
  const SamplingParams params{.presence_penalty = 0.7f, .frequency_penalty = 0.3f, .repetition_penalty = 1.4f};
  std::mt19937 random(8);
  std::vector<int32_t> prompt(40), text;
  TokenCounts prompt_counts, counts;
  for (int32_t& token : prompt) prompt_counts.Add(token = random() % 30);
  ThreadPool pool(1);
  Sampler sampler(&pool, kVocab);
  for (int32_t length = 0; length < 60; ++length) {
    const std::vector<float> logits = RandomLogits(kVocab, length, 1.0f);
    std::vector<int32_t> drafted(random() % 5);
    for (int32_t& token : drafted) token = random() % 50;
    std::vector<int32_t> all = text;
    all.insert(all.end(), drafted.begin(), drafted.end());
    std::vector<float> distribution(kVocab);
    TokenDraw draw;
    const SampleTask task{.logits = logits,
                          .params = &params,
                          .prompt = &prompt_counts,
                          .generated = &counts,
                          .drafted = drafted,
                          .draws = std::span(&draw, 1),
                          .distribution = distribution};
    sampler.Run(std::span(&task, 1), {});
    const std::vector<double> expected = NaiveDistribution(NaivelyPenalized(logits, params, prompt, all), {});
    for (int32_t v = 0; v < kVocab; ++v) ASSERT_NEAR(distribution[v], expected[v], 1e-5) << "token " << v << " after " << length;
    text.push_back(static_cast<int32_t>(random() % 50));
    counts.Add(text.back(), &prompt_counts);
  }
}

// Draws drafts from q and verifies them against p: what comes out is distributed as p, and as many are accepted as can be.
void ExpectSpeculativeDistribution(const std::vector<float>& p_logits, const std::vector<float>& q_logits,
                                   const SamplingParams& params) {
  constexpr int32_t kCount = 20000;
  const int32_t vocab = static_cast<int32_t>(p_logits.size());
  ThreadPool pool(1);
  Sampler sampler(&pool, vocab);
  std::vector<float> q(vocab);
  std::vector<int64_t> counts(vocab), drafts(vocab);
  int64_t accepted = 0;
  for (int32_t i = 0; i < kCount; ++i) {
    TokenDraw draft, draw;
    SampleTask task{.logits = q_logits, .params = &params, .position = static_cast<uint32_t>(i), .draws = std::span(&draft, 1)};
    task.distribution = q;
    sampler.Run(std::span(&task, 1), {});
    task = {.logits = p_logits, .params = &params, .position = static_cast<uint32_t>(i), .draws = std::span(&draw, 1)};
    task.proposal = q;
    task.draft = draft.token;
    sampler.Run(std::span(&task, 1), {});
    ++counts[draw.token];
    ++drafts[draft.token];
    accepted += draw.token == draft.token;
  }
  const std::vector<double> p = NaiveDistribution(p_logits, params), naive_q = NaiveDistribution(q_logits, params);
  EXPECT_LT(ChiSquareDeviations(counts, p), 5);
  EXPECT_LT(ChiSquareDeviations(drafts, naive_q), 5);
  double overlap = 0;
  for (int32_t v = 0; v < vocab; ++v) overlap += std::min(p[v], naive_q[v]);
  overlap = std::min(overlap, 1.0);
  EXPECT_NEAR(static_cast<double>(accepted) / kCount, overlap, 5 * std::sqrt(overlap * (1 - overlap) / kCount) + 1e-3);
}

TEST(Sampler, VerifiedDraftsFollowTheTargetsDistribution) {
  const std::vector<float> p = RandomLogits(50, 21, 1.5f), q = RandomLogits(50, 22, 1.5f);
  ExpectSpeculativeDistribution(p, q, {});
  ExpectSpeculativeDistribution(p, p, {});
  ExpectSpeculativeDistribution(p, q, {.temperature = 0.6f, .top_p = 0.9f});
  ExpectSpeculativeDistribution(p, q, {.top_k = 8, .min_p = 0.02f});
  std::vector<float> near = p;
  for (size_t i = 0; i < near.size(); i += 3) near[i] += 0.5f;
  ExpectSpeculativeDistribution(p, near, {.temperature = 1.3f});
}

TEST(Sampler, ManyDrawsFromOneRowAreThoseOfSingleOnes) {
  const std::vector<float> logits = RandomLogits(5000, 9);
  const SamplingParams params{.temperature = 0.9f, .top_p = 0.9f, .seed = 77};
  ThreadPool pool(2);
  Sampler sampler(&pool, 5000);
  std::vector<TokenDraw> together(64), alone(64);
  for (int32_t i = 0; i < 64; ++i) together[i].sample = alone[i].sample = i;
  std::vector<SampleTask> tasks = {{.logits = logits, .params = &params, .position = 3, .draws = together}};
  sampler.Run(tasks, {});
  tasks.clear();
  for (int32_t i = 0; i < 64; ++i) {
    tasks.push_back({.logits = logits, .params = &params, .position = 3, .draws = std::span(alone).subspan(i, 1)});
  }
  sampler.Run(tasks, {});
  std::set<int32_t> distinct;
  for (int32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(together[i].token, alone[i].token);
    EXPECT_EQ(together[i].logprob, alone[i].logprob);
    distinct.insert(together[i].token);
  }
  EXPECT_GT(distinct.size(), 10u);
}

TEST(Sampler, ReportsLogitsThatAreNoNumbers) {
  std::vector<float> logits(300, 0.0f);
  logits[123] = NAN;
  EXPECT_EQ(DrawMany(logits, {}, 1)[0].token, -1);
  logits[123] = INFINITY;
  EXPECT_EQ(DrawMany(logits, {.temperature = 0}, 1)[0].token, -1);
}

TEST(Sampler, AMaskLeavesTheDistributionOfWhatItAllows) {
  const std::vector<float> logits = RandomLogits(777, 3);
  std::vector<uint32_t> mask(MaskWords(777), 0u);
  std::vector<float> left(logits.size(), -INFINITY);
  for (const int32_t token : {3, 31, 32, 500, 776}) {
    mask[token / 32] |= uint32_t{1} << token % 32;
    left[token] = logits[token];
  }
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 3},
                                       SamplingParams{.top_p = 0.9f}, SamplingParams{.temperature = 0.5f, .min_p = 0.2f}}) {
    const std::vector<TokenDraw> masked = DrawMany(logits, params, 200, {.mask = mask});
    const std::vector<TokenDraw> alone = DrawMany(left, params, 200);
    for (size_t i = 0; i < masked.size(); ++i) EXPECT_EQ(masked[i].token, alone[i].token);
  }
}

TEST(Sampler, WhereNothingIsAllowedNoTokenIsDrawn) {
  const std::vector<float> logits = RandomLogits(300, 3);
  const std::vector<uint32_t> mask(MaskWords(300), 0u);
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 3}}) {
    EXPECT_EQ(DrawMany(logits, params, 1, {.mask = mask})[0].token, kNothingAllowed);
  }
  SamplingParams params;
  for (int32_t token = 0; token < 300; ++token) params.logit_bias.emplace_back(token, -INFINITY);
  EXPECT_EQ(DrawMany(logits, params, 1)[0].token, kNothingAllowed);
}

TEST(Sampler, ImpossibleTokensAreNeverDrawn) {  // some checkpoints pad the vocabulary with -infinity
  std::vector<float> logits(300, -INFINITY);
  logits[5] = 1.0f;
  logits[6] = 0.5f;
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.top_k = 10}, SamplingParams{.top_p = 0.99f}}) {
    for (const TokenDraw& draw : DrawMany(logits, params, 100)) EXPECT_TRUE(draw.token == 5 || draw.token == 6);
  }
}

}  // namespace
}  // namespace coppice
