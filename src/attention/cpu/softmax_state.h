// The equations of the attention state on the CPU, each once: online softmax in base 2, fold of partial states, the final
// division. Kernels vectorise them but name these steps.
// Layer: attention/cpu. Milakov & Gimelshein 2018 (online softmax); Cascade Inference, "Attention states" (the merge).
//
//   state of a set T of tokens for one row, with scores s_t in base 2 (log2(e) folded into the scale):
//     m = max_t s_t      l = sum_t 2^(s_t - m)      acc = sum_t 2^(s_t - m) v_t       empty: m = -inf, l = 0, acc = 0
//   fold of disjoint A and B:  m = max(m_A, m_B),  l = l_A 2^(m_A - m) + l_B 2^(m_B - m),  acc likewise
//   out = acc / l       lse_log2 = m + log2(l)       lse = lse_log2 * ln(2)
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace coppice::attention::cpu {

inline constexpr float kLog2E = 1.44269504088896340736f, kLn2 = 0.693147180559945309417f;
inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// The factor that brings a state with maximum m to the maximum m_new >= m. An empty state keeps its zeros.
inline float Rescale(float m, float m_new) {
  if (m == m_new) return m == kNegInf ? 0.0f : 1.0f;  // one side of each fold
  return m == kNegInf ? 0.0f : std::exp2(m - m_new);
}

// One row's partial state; acc has head_dim elements.
struct RowState {
  float* acc;
  float* m;
  float* l;
};
struct ConstRowState {
  const float* acc;
  float m, l;
};

// into = fold(into, from). The one implementation that both the kernels' cuts and the merge of partial states use: in
// deterministic mode their bits must agree (docs/numerics.md), so it is never inlined into differently optimised callers.
void FoldState(const RowState& into, const ConstRowState& from, int32_t head_dim);

// Natural logarithm of the softmax denominator; -inf for the empty state, NaN where a score or a merged lse is NaN.
inline float NaturalLse(float m, float l) { return l == 0 ? kNegInf : (m + std::log2(l)) * kLn2; }

}  // namespace coppice::attention::cpu
