#include "attention_tools/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coppice::attention {
double ElementOf(const void* base, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32: return static_cast<const float*>(base)[index];
    case DType::kBF16: return static_cast<const BF16*>(base)[index].ToFloat();
    case DType::kF16: return static_cast<const F16*>(base)[index].ToFloat();
  }
  return 0;
}

ReferenceResult ReferenceAttention(const AttentionSpec& spec, const PrefixForestView& forest, const KvLayerView& kv, const void* q,
                                   int64_t q_row_stride, int64_t num_queries) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const int32_t d = spec.head_dim, heads = spec.num_qo_heads;
  const double scale = spec.sm_scale != 0 ? spec.sm_scale : 1 / std::sqrt(static_cast<double>(d));
  ReferenceResult result;
  result.out.assign(num_queries * heads * d, kNaN);
  result.sum_abs.assign(num_queries * heads * d, kNaN);
  result.lse.assign(num_queries * heads, kNaN);
  result.sum_largest.assign(num_queries * heads, kNaN);
  result.max_abs_score.assign(num_queries * heads, kNaN);

  std::vector<double> scores;
  std::vector<int64_t> offsets;  // of the visible tokens' k and v
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {
    if (forest.branch_node[b] == kFreeSlot) continue;
    const int32_t count = forest.branch_query_count[b], span_begin = forest.branch_kv_len[b] - count;
    for (int32_t i = 0; i < count; ++i) {
      const int64_t row = forest.branch_query_begin[b] + i;
      const int32_t own = span_begin + i;
      for (int32_t head = 0; head < heads; ++head) {
        const int32_t kv_head = head / spec.group_size();
        scores.clear();
        offsets.clear();
        double max_score = -kInf, max_abs_score = 0;
        for (int32_t token = 0; token <= own; ++token) {
          if (spec.window > 0 && token <= own - spec.window) continue;
          if (token >= span_begin && !forest.query_tree_mask.empty() &&
              !(forest.query_tree_mask[row] >> (token - span_begin) & 1)) {
            continue;
          }
          const int64_t page = forest.page_indices[forest.branch_page_begin[b] + token / forest.page_size];
          const int64_t offset = page * kv.page_stride + kv_head * kv.head_stride + (token % forest.page_size) * kv.slot_stride;
          double score = 0, abs_score = 0;
          for (int32_t e = 0; e < d; ++e) {
            const double product =
                ElementOf(q, spec.q_dtype, row * q_row_stride + int64_t{head} * d + e) * ElementOf(kv.k, kv.dtype, offset + e);
            score += product;
            abs_score += std::abs(product);
          }
          score *= scale * kv.k_scale;
          if (spec.soft_cap > 0) score = spec.soft_cap * std::tanh(score / spec.soft_cap);
          scores.push_back(score);
          offsets.push_back(offset);
          max_score = std::max(max_score, score);
          max_abs_score = std::max(max_abs_score, abs_score * std::abs(scale * kv.k_scale));
        }

        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - max_score);
        const int64_t r = row * heads + head;
        result.lse[r] = sum > 0 ? max_score + std::log(sum) : -kInf;
        result.max_abs_score[r] = max_abs_score;
        double sum_largest = 0;
        for (size_t t = 0; t < scores.size(); ++t) {
          double largest = 0;
          for (int32_t e = 0; e < d; ++e) largest = std::max(largest, std::abs(ElementOf(kv.v, kv.dtype, offsets[t] + e)));
          sum_largest += scores[t] / sum * largest * std::abs(static_cast<double>(kv.v_scale));
        }
        result.sum_largest[r] = sum_largest;
        for (int32_t e = 0; e < d; ++e) {
          double out = 0, sum_abs = 0;
          for (size_t t = 0; t < scores.size(); ++t) {
            const double v = ElementOf(kv.v, kv.dtype, offsets[t] + e) * kv.v_scale;
            out += scores[t] / sum * v;
            sum_abs += scores[t] / sum * std::abs(v);
          }
          result.out[r * d + e] = out;
          result.sum_abs[r * d + e] = sum_abs;
        }
      }
    }
  }
  return result;
}

Tolerance ToleranceFor(const AttentionSpec& spec, int64_t visible, int32_t contributions, double max_abs_score) {
  // u: unit roundoff of a type. Every sum is at worst a chain of n roundings, on average sqrt(n) of them: we allow 4 sigma of
  // the random walk, which a correct kernel passes with certainty for our sample sizes and a wrong one does not.
  constexpr double kF32 = 0x1p-24, kBF16 = 0x1p-8, kF16 = 0x1p-11;
  const auto unit = [](DType t) { return t == DType::kF32 ? kF32 : t == DType::kBF16 ? kBF16 : kF16; };
  const double n = std::max<double>(visible, 1), d = spec.head_dim;
  // Score: d products summed in fp32, then scale, cap and max: absolute error in units of sum |q k|. exp turns it relative.
  const double score_error = kF32 * (4 * std::sqrt(d) + 8) * std::max(max_abs_score, 1.0);
  const double exp_error = 2 * kF32 + 2e-7;  // polynomial and its rounding
  const double fold_error = kF32 * (4 * std::sqrt(n) + 4 * contributions + 8);
  // Where products take 16-bit inputs P is rounded to that type before it meets V (and l sums the same rounded values).
  const double p_error = spec.kv_dtype == DType::kF32 ? 0 : unit(spec.kv_dtype);
  return {
      .out_relative = 2 * (score_error + exp_error) + fold_error + p_error + unit(spec.q_dtype),
      .out_absolute = spec.q_dtype == DType::kF16 ? 0x1p-25 : 1e-37,  // half the smallest subnormal of the output
      .lse_absolute = score_error + exp_error + fold_error + p_error,
  };
}

}  // namespace coppice::attention
