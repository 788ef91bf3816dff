// What comes out of a draw. Layer: runner.
#pragma once

#include <cstdint>

namespace coppice {

// TokenDraw::token where there is none: the row holds no distribution (NaN or infinite logits), or mask, bias and bans leave
// nothing.
inline constexpr int32_t kNoDistribution = -1, kNothingAllowed = -2;

struct TokenDraw {
  int32_t sample = 0;  // index of the sample in its request
  int32_t token = kNoDistribution;
  float logprob = 0.0f;  // natural logarithm, of the distribution that SamplingParams::logprobs_mode says
  int32_t rank = 0;      // of the token in that distribution, from 1 on; 0: not wanted
};

}  // namespace coppice
