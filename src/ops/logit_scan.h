// The passes over a row of logits that cost time, vectorised: maxima and exponential sums per block of kLogitBlock entries. All
// else that sampling on the host does looks at blocks first and then at few entries. Layer: ops.
#pragma once

#include <cstdint>
#include <span>

#include "core/math.h"

namespace coppice::ops {

inline constexpr int64_t kLogitBlock = 256;  // 192 blocks at a vocabulary of 49,152: fine enough for top_k, few enough to walk
constexpr int64_t NumLogitBlocks(int64_t vocab) { return CeilDiv(vocab, kLogitBlock); }

// maxima[i] = largest logit of block i; returns the largest of all. NaN in `logits` gives an unspecified result.
float ScanMaxima(std::span<const float> logits, std::span<float> maxima);

// sums[i] = sum over block i of exp((logit - max) * inverse_temperature), no less than e^-87 each; returns the sum of all, NaN if a
// logit is. `max` is their maximum.
double ScanExpSums(std::span<const float> logits, float max, float inverse_temperature, std::span<float> sums);

// exps[i] = exp((logits[i] - max) * inverse_temperature), likewise; returns the sum.
double ScanExps(std::span<const float> logits, float max, float inverse_temperature, std::span<float> exps);

}  // namespace coppice::ops
