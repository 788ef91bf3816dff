// The oracle: softmax attention in fp64, straight from the forest, one row at a time. It knows no plan, no sharing and no state
// merge, and shares no code with the kernels, so that it can contradict them. Slow on purpose.
// Layer: attention. Equation: Vaswani et al. 2017, eq. 1, with causal, window and draft-tree masks and the logit soft cap.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/attention/attention.h"

namespace coppice::attention {

// out [num_queries, num_qo_heads, head_dim]; lse [num_queries, num_qo_heads], natural logarithm, -inf (out 0) for a row that sees
// nothing; NaN in both for rows that belong to no branch. sum_abs [like out]: softmax-weighted sum of |v|, the scale that
// rounding errors of `out` are relative to; sum_largest [like lse]: that of each token's largest |v|. max_abs_score [like lse]: the
// largest sm_scale * sum_d |q_d k_d| of the row's visible tokens, the scale of the errors of scores.
struct ReferenceResult {
  std::vector<double> out, lse, sum_abs, sum_largest, max_abs_score;
};

// An element of an array of `dtype`.
double ElementOf(const void* base, DType dtype, int64_t index);

// q as in RunArgs with num_queries rows. REQUIRES: a forest that AttentionPlan::Update accepts, indices inside the pool.
ReferenceResult ReferenceAttention(const AttentionSpec& spec, const PrefixForestView& forest, const KvLayerView& kv, const void* q,
                                   int64_t q_row_stride, int64_t num_queries);

// Largest error of a backend against the oracle, element by element (docs/numerics.md, "Tolerances", derives both):
//   |out - reference| <= out_relative * (sum_abs + |out|) + out_absolute     |lse - reference| <= lse_absolute
// Where products are of integers (attention/cpu/dense_tile_int16.h) scores err by kIntegerScores * max_abs_score more, which is
// relative to weights, and outputs by kIntegerValues * sum_largest.
inline constexpr double kIntegerScores = 0x1p-13, kIntegerValues = 0x1p-13;
struct Tolerance {
  double out_relative = 0, out_absolute = 0, lse_absolute = 0;
};
// For a row that sees `visible` tokens, folded from at most `contributions` partial states.
Tolerance ToleranceFor(const AttentionSpec& spec, int64_t visible, int32_t contributions, double max_abs_score);

}  // namespace coppice::attention
