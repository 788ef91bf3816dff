// Chooses the next token of each row of logits and says how probable the model found it. Stateless: random numbers come from a
// counter (philox.h), so a sample's tokens depend on its own logits and parameters alone. Layer: engine. Order of the filters:
// penalties and bias, temperature, top_k, top_p, min_p.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coppice/engine.h"
#include "coppice/executor.h"

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
  uint32_t position = 0;               // kv index of the token to choose: the counter of the random stream
  std::span<const int32_t> prompt;     // for the repetition penalty
  std::span<const int32_t> generated;  // for all penalties
  std::span<const int32_t> banned;     // ids that must not come now (min_tokens)
  std::span<TokenDraw> draws;
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
    std::vector<int32_t> counts;  // [vocab] occurrences; zero between uses
  };

  static void Sample(const SampleTask& task, Scratch& scratch);
  static void Score(const ScoreTask& task, Scratch& scratch);
  static std::span<const float> Adjust(const SampleTask& task, Scratch& scratch);
  static void DrawFromAll(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  static void DrawFromCandidates(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch);
  static void CollectAtLeast(std::span<const float> logits, float threshold, Scratch& scratch);

  Executor* executor_;
  std::vector<Scratch> scratch_;  // by worker
};

}  // namespace coppice
