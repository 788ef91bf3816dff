// How tokens are chosen, and what is said of the choice. Layer: public API of coppice::runner; coppice/engine/engine.h uses it.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice {

// The distribution that log-probabilities of an output's tokens, and their ranks, are of.
enum class LogprobsMode : uint8_t {
  kRaw,  // the model's own, before sampling parameters
  // The one that the token is drawn from: after penalties, bias, constraint, temperature and filters. Temperature 0 counts as 1
  // here, without filters. Of a prompt's tokens: at the temperature, without all else.
  kProcessed,
};
constexpr std::string_view Name(LogprobsMode mode) {
  switch (mode) {
    case LogprobsMode::kRaw: return "raw_logprobs";
    case LogprobsMode::kProcessed: return "processed_logprobs";
  }
  return "?";
}

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
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;  // of StreamEvent::logprobs, top_logprobs and ranks
};

// A token that could have come, and the natural logarithm of its probability, of the distribution that
// SamplingParams::logprobs_mode says.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
  bool operator==(const TokenLogprob&) const = default;
};

// Of Request::top_logprobs.
inline constexpr int32_t kMaxTopLogprobs = 128;

}  // namespace coppice
