// The model's score of a cached token: kept beside its KV, so that asking again computes nothing. Layer: cache.
// docs/engine.md, "Scores that stay".
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace coppice {

// All of one computation: log-probabilities of two of them differ by rounding.
struct TokenScore {
  // Natural logarithm of the token's probability behind the tokens before it, of the model's distribution at `temperature`. NaN:
  // nothing is known.
  float logprob = std::numeric_limits<float>::quiet_NaN();
  float temperature = 1;
  int32_t top_token = -1;  // the most probable token in its place; -1: not known
  float top_logprob = 0;   // of that one
  int32_t rank = 0;        // of the token: 1 is the most probable one; 0: not known

  bool is_known() const { return !std::isnan(logprob); }
  // Whether it says all that `other` does, of the same distribution.
  bool Covers(const TokenScore& other) const {
    return is_known() && temperature == other.temperature && (top_token >= 0 || other.top_token < 0) &&
           (rank > 0 || other.rank == 0);
  }
};

}  // namespace coppice
