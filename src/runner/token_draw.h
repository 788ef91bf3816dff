// The result of a draw. Layer: runner.
#pragma once

#include <cstdint>

namespace coppice {

// TokenDraw::token where there is none: the row holds no distribution (NaN or infinite logits), or mask, bias and bans leave
// nothing.
inline constexpr int32_t kNoDistribution = -1, kNothingAllowed = -2;

struct TokenDraw {
  int32_t sample = 0;               // index of the sample in its request
  int32_t token = kNoDistribution;  // of a row whose continuations are selected (Draw::beam): 0, if it holds a distribution
  float logprob = 0.0f;             // natural logarithm, of the distribution that SamplingParams::logprobs_mode says
  int32_t rank = 0;                 // of the token in that distribution, from 1 on; 0: not wanted
};

// A continuation that a selection has found.
struct SelectedToken {
  int32_t beam = -1;  // of StepBatch::beams; -1: there are no more
  int32_t token = -1;
  float logprob = 0;  // natural logarithm: of the model's distribution, stochastic: of that at the temperature
  float score = 0;    // what it was selected by: the beam's and its own, stochastic: with noise
};

}  // namespace coppice
