// Chooses the next token of each row of logits and says how probable it is (SamplingParams::logprobs_mode). Stateless: random
// numbers come from a counter (philox.h), so a sample's tokens depend on its own logits and parameters alone. Layer: runner. Order
// of the filters: penalties and bias, temperature, top_k, top_p, min_p. Drafted tokens: speculative sampling (Leviathan et al.
// 2023, algorithm 1). Continuations of beams with noise: stochastic beam search (Kool et al. 2019, algorithm 1).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "coppice/core/executor.h"
#include "coppice/runner/sampling.h"
#include "runner/runner.h"
#include "runner/step_batch.h"
#include "runner/token_counts.h"

namespace coppice {

// A row of logits and the draws from it: one for a running sample, n where the samples of a prompt begin.
struct SampleTask {
  std::span<const float> logits;  // [vocab]
  const SamplingParams* params = nullptr;
  uint32_t position = 0;                   // kv index of the token to choose: the counter of the random stream
  const TokenCounts* prompt = nullptr;     // for the repetition penalty; null: nothing
  const TokenCounts* generated = nullptr;  // for all penalties; entries know whether they are in `prompt`. Null: nothing
  std::span<const int32_t> drafted;        // tokens between `generated` and this row, for all penalties
  std::span<const int32_t> banned;         // ids that must not come now (min_tokens)
  std::span<const uint32_t> mask;          // StepBatch::masks: what may come; empty: everything
  std::span<TokenDraw> draws;              // one, where `distribution`, `proposal` or `draft` is set
  bool wants_rank = false;                 // of the draws
  // [vocab] or empty: receives the probabilities that the parameters leave, and the draw is a draft's: from a random stream apart.
  std::span<float> distribution;
  // [vocab] or empty: the probabilities that `draft` was drawn from. The draw is `draft` with probability min(1, p / q), else a
  // token of the normalised max(0, p - q): in all, of p, whatever q is.
  std::span<const float> proposal;
  int32_t draft = -1;
  std::span<TokenLogprob> top_logprobs;  // receives the most probable tokens of the row; at most the vocabulary's size
};

// A row of logits and the tokens whose log-probabilities after it are wanted.
struct ScoreTask {
  std::span<const float> logits;  // [vocab]
  std::span<const Score> scores;
  std::span<float> logprobs;             // receives one for each; NaN where the row holds no distribution
  std::span<int32_t> ranks;              // likewise, where Score::wants_rank; 0 where the row holds none
  std::span<TokenLogprob> top_logprobs;  // as SampleTask's
};

// A row of logits whose best continuations are wanted.
struct BeamTask {
  std::span<const float> logits;           // [vocab]
  const SamplingParams* params = nullptr;  // stochastic: its temperature and seed count
  uint32_t position = 0;                   // as SampleTask's
  std::span<const int32_t> banned;         // ids that must not come now
  int32_t index = 0;                       // of the beam, for SelectedToken::beam
  Beam beam;
  bool stochastic = false;
  TokenDraw* draw = nullptr;  // says whether the row holds a distribution; its sample names the random stream
  // Receives the best ones, in any order; where there are fewer, the rest stays as it is.
  std::span<SelectedToken> best;
};

// Thread-compatible. Rows are shared out over the executor's workers; a row's result does not depend on the others.
class Sampler {
 public:
  // `executor` outlives the sampler.
  Sampler(Executor* executor, int32_t vocab_size);

  void Run(std::span<const SampleTask> samples, std::span<const ScoreTask> scores, std::span<const BeamTask> beams = {});

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };
  // One worker's memory.
  struct Scratch {
    std::vector<float> adjusted;             // [vocab] logits after penalties and bias
    std::vector<float> maxima, sums, order;  // per block
    std::vector<Candidate> candidates;
    std::vector<float> distribution;  // [vocab]
    std::vector<std::pair<double, int32_t>> races;
  };

  static void Sample(const SampleTask& task, Scratch& scratch);
  static void Score(const ScoreTask& task, Scratch& scratch);
  static void Continue(const BeamTask& task, Scratch& scratch);
  static void ContinueStochastically(const BeamTask& task, float max, Scratch& scratch);
  static std::span<const float> Adjust(const SampleTask& task, Scratch& scratch);
  // Both return the sum of the weights exp((logit - max) / temperature) of what is drawn from.
  static double DrawFromAll(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  static double DrawFromCandidates(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  static void DrawSpeculatively(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  // The candidates that the filters leave, most probable first, and the sum of their weights exp((logit - max) / temperature).
  static double FilterCandidates(const SamplingParams& params, std::span<const float> logits, float max, Scratch& scratch);
  // Gives draws the log-probabilities and ranks of LogprobsMode::kProcessed. `mass`: what the draw returned; none: it is not known.
  static void SetProcessed(const SampleTask& task, std::span<const float> logits, float max, std::optional<double> mass,
                           Scratch& scratch);
  // The probability of every token.
  static void FillDistribution(const SamplingParams& params, std::span<const float> logits, float max, Scratch& scratch,
                               std::span<float> distribution);
  static void CollectAtLeast(std::span<const float> logits, float threshold, Scratch& scratch);
  // The k largest logits, of equals those of lower ids, in any order. REQUIRES: scratch.maxima are of `logits`.
  static void CollectTop(std::span<const float> logits, size_t k, Scratch& scratch);
  // log(exp((logit - max) / temperature) / sum of weights).
  struct Normaliser {
    float max = 0, temperature = 1;
    double log_sum = 0;

    float LogprobOf(float logit) const { return static_cast<float>((logit - max) / temperature - log_sum); }
  };
  // The most probable tokens of a row. REQUIRES: scratch.maxima are of `logits`; `top` is not longer.
  static void FillTopLogprobs(std::span<const float> logits, const Normaliser& normaliser, Scratch& scratch,
                              std::span<TokenLogprob> top);
  // The first of scratch.candidates, which are sorted.
  static void WriteCandidates(const Normaliser& normaliser, const Scratch& scratch, std::span<TokenLogprob> top);
  static bool Before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  }

  Executor* executor_;
  std::vector<Scratch> scratch_;  // by worker
};

}  // namespace coppice
