// How tokens are chosen, and what is said of the choice. Layer: public API of coppice::runner; coppice/engine/engine.h uses it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace coppice {

// How the next token is chosen. Defaults sample from the model's own distribution.
struct SamplingParams {
  float temperature = 1.0f;  // below 1e-6: greedy
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: off
  float min_p = 0.0f;        // [0, 1]
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, added to its logit
  uint64_t seed = 0;  // sample i of a request draws from a stream that depends on (seed, i, position) alone
};

// A token that could have come, and the natural logarithm of the model's own probability of it, before sampling parameters.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
  bool operator==(const TokenLogprob&) const = default;
};

// Of Request::top_logprobs.
inline constexpr int32_t kMaxTopLogprobs = 20;

}  // namespace coppice
