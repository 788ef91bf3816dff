// Chooses the next token of each row of logits and says how probable the model found it. Stateless: random numbers come from a
// counter (philox.h), so a sample's tokens depend on its own logits and parameters alone. Layer: engine. Order of the filters:
// penalties and bias, temperature, top_k, top_p, min_p. Drafted tokens: speculative sampling (Leviathan et al. 2023, algorithm 1).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coppice/core/executor.h"
#include "coppice/engine/engine.h"
#include "engine/token_counts.h"

namespace coppice {

// One draw from a row: which stream, and what came out.
struct TokenDraw {
  int32_t sample = 0;    // index of the sample in its request
  int32_t token = -1;    // -1: the row holds no distribution (NaN or infinite logits)
  float logprob = 0.0f;  // natural logarithm of the model's own probability, before any parameter
};

// A row of logits and the draws from it: one for a running sample, n where the samples of a prompt begin.
struct SampleTask {
  std::span<const float> logits;  // [vocab]
  const SamplingParams* params = nullptr;
  uint32_t position = 0;                   // kv index of the token to choose: the counter of the random stream
  const TokenCounts* prompt = nullptr;     // for the repetition penalty; null: nothing
  const TokenCounts* generated = nullptr;  // for all penalties; entries know whether they are in `prompt`. Null: nothing
  std::span<const int32_t> drafted;        // tokens between `generated` and this row, for all penalties
  std::span<const int32_t> banned;         // ids that must not come now (min_tokens)
  std::span<TokenDraw> draws;              // one, where any of the following is set
  // [vocab] or empty: receives the probabilities that the parameters leave, and the draw is a draft's: from a random stream apart.
  std::span<float> distribution;
  // [vocab] or empty: the probabilities that `draft` was drawn from. The draw is `draft` with probability min(1, p / q), else a
  // token of the normalised max(0, p - q): in all, of p, whatever q is.
  std::span<const float> proposal;
  int32_t draft = -1;
};

// A token whose log-probability is wanted (prompt_logprobs).
struct ScoreTask {
  std::span<const float> logits;
  int32_t token = 0;
  std::optional<float>* logprob = nullptr;
};

// Thread-compatible. Rows are shared out over the executor's workers; a row's result does not depend on the others.
class Sampler {
 public:
  // `executor` outlives the sampler.
  Sampler(Executor* executor, int32_t vocab_size);

  void Run(std::span<const SampleTask> samples, std::span<const ScoreTask> scores);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };
  // One worker's memory.
  struct Scratch {
    std::vector<float> adjusted;      // [vocab] logits after penalties and bias
    std::vector<float> maxima, sums;  // per block
    std::vector<Candidate> candidates;
    std::vector<float> distribution;  // [vocab]
  };

  static void Sample(const SampleTask& task, Scratch& scratch);
  static void Score(const ScoreTask& task, Scratch& scratch);
  static std::span<const float> Adjust(const SampleTask& task, Scratch& scratch);
  static void DrawFromAll(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  static void DrawFromCandidates(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  static void DrawSpeculatively(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  // The candidates that the filters leave, most probable first, and the sum of their weights exp((logit - max) / temperature).
  static double FilterCandidates(const SamplingParams& params, std::span<const float> logits, float max, Scratch& scratch);
  // The probability of every token.
  static void FillDistribution(const SamplingParams& params, std::span<const float> logits, float max, Scratch& scratch,
                               std::span<float> distribution);
  static void CollectAtLeast(std::span<const float> logits, float threshold, Scratch& scratch);

  Executor* executor_;
  std::vector<Scratch> scratch_;  // by worker
};

}  // namespace coppice
