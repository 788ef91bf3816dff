// What the AVX-512 kernels share: 2^x, tanh, masks and 16 x 16 transposes on vectors of 16 floats. Include it inside a region
// compiled for AVX-512 (see cpu_features.h); everything has internal linkage, so that no baseline code can pick it up.
// Layer: attention/cpu.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {
namespace {

// 2^x. Degree 6: relative error 1.2e-7 (2e-9 of it from the polynomial); degree 4: 2.6e-6, for results that are rounded to bf16.
// Minimax on [0, 1); x - floor(x) of -inf is 0 and scalef gives 0 there.
template <int kDegree>
inline __m512 Exp2V(__m512 x) {
  static_assert(kDegree == 4 || kDegree == 6);
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p;
  if constexpr (kDegree == 6) {
    p = _mm512_set1_ps(0.00021702255447468804f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0012439687828550542f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009678840996293153f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0554833419843034f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24022983627406658f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931469838406079f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0000000018557997f));
  } else {
    p = _mm512_set1_ps(0.0135341679127926f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.052011460619445414f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2414427568826408f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6930038344738605f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0000025933704202f));
  }
  return _mm512_scalef_ps(p, x);
}

// tanh with an absolute error near 1e-7 and a relative one near 2e-7 around 0 (odd polynomial of Cephes below 0.625).
inline __m512 TanhV(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), z = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(-5.70498872745e-3f);
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.06390887954e-2f));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.37397155531e-2f));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33314422036e-1f));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33332819422e-1f));
  const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
  const __m512 magnitude = _mm512_abs_ps(x);
  const __m512 e = Exp2V<6>(_mm512_mul_ps(magnitude, _mm512_set1_ps(2 * kLog2E)));
  const __m512 large = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
  const __mmask16 use_large = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0.625f), _CMP_GE_OQ);
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  return _mm512_mask_or_ps(small, use_large, large, sign);
}

// The maximum to subtract: 0 for lanes that have seen nothing, whose scores are all -inf.
inline __m512 SafeMax(__m512 m) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(m, _mm512_set1_ps(kNegInf), _CMP_NEQ_OQ), m); }

// In place: row i, element j <-> row j, element i. The dwords move unchanged.
inline void Transpose16x16(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// What the rows of one vector lane each see: lane i is row first_row + i of the tile; lanes past the last row see nothing.
struct LaneRanges {
  __m512i begin, end;
  int32_t first, last;         // what any lane sees
  int32_t all_begin, all_end;  // what every lane sees without a mask (pad lanes do not count)
  bool has_tree;
  const TileQuery* query[16];  // null for pad lanes

  void Set(const TileTask& task, int32_t first_row) {
    alignas(64) int32_t b[16], e[16];
    first = INT32_MAX, last = 0, all_begin = 0, all_end = INT32_MAX;
    has_tree = false;
    for (int32_t lane = 0; lane < 16; ++lane) {
      const int32_t row = first_row + lane;
      query[lane] = row < task.num_rows() ? &task.queries[row / task.group_size] : nullptr;
      b[lane] = query[lane] ? query[lane]->begin : 0;
      e[lane] = query[lane] ? query[lane]->end : 0;
      if (query[lane] == nullptr) continue;
      all_begin = std::max(all_begin, b[lane]);
      all_end = std::min({all_end, e[lane], query[lane]->span_begin});
      has_tree |= query[lane]->span_begin != INT32_MAX;
      if (b[lane] >= e[lane]) continue;
      first = std::min(first, b[lane]);
      last = std::max(last, e[lane]);
    }
    begin = _mm512_load_si512(b);
    end = _mm512_load_si512(e);
  }

  bool SeeAll(int32_t from, int32_t to) const { return all_begin <= from && to <= all_end; }

  __mmask16 See(int32_t index) const {
    const __m512i i = _mm512_set1_epi32(index);
    __mmask16 mask = _mm512_cmple_epi32_mask(begin, i) & _mm512_cmpgt_epi32_mask(end, i);
    if (has_tree && index >= all_end) {
      for (int32_t lane = 0; lane < 16; ++lane) {
        if ((mask >> lane & 1) && !query[lane]->Sees(index)) mask &= static_cast<__mmask16>(~(1u << lane));
      }
    }
    return mask;
  }
};

}  // namespace
}  // namespace coppice::attention::cpu
