// What the AVX-512 kernels share: 2^x, tanh, sums and 16 x 16 transposes on vectors of 16 floats. Include it inside a region
// compiled for AVX-512 (see cpu_features.h); everything has internal linkage, so that no baseline code can pick it up.
// Layer: attention/cpu.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {
namespace {

// 2^x. Degree 6: relative error 1.2e-7 (2e-9 of it from the polynomial); degree 5: 2e-7 (7.5e-8), for weights that are summed and
// then rounded to bf16 (4e-3); degree 3: 7.5e-5, for weights that are rounded before all else. Minimax on [0, 1); x - floor(x) of
// -inf is 0 and scalef gives 0 there.
template <int kDegree>
inline __m512 Exp2V(__m512 x) {
  static_assert(kDegree == 3 || kDegree == 5 || kDegree == 6);
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
  } else if constexpr (kDegree == 5) {
    p = _mm512_set1_ps(0.0018775766735585646f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.008989340092747268f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.055826318053292245f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24015361704365748f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931530732002869f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999999250635426f));
  } else {
    p = _mm512_set1_ps(0.07802452268953328f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2260671553970887f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6958335404792924f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999252185659143f));
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

// 128-bit lanes of a, then of b, added in pairs.
inline __m512 AddLanes(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Sums of 16 vectors: element i is the sum of the elements of r[i]. A fixed tree of additions.
inline __m512 SumEach(__m512 (&r)[16]) {
  __m512 t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
    t[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  return AddLanes(AddLanes(t[0], t[1]), AddLanes(t[2], t[3]));
}

// The operations that tile_simd.h is written in.
struct Simd512 {
  static constexpr const char* kDenseName = "avx512 dense tile";
  static constexpr const char* kStreamName = "avx512 stream tile";
  static constexpr int32_t kLanes = 16;
  using V = __m512;

  static V Zero() { return _mm512_setzero_ps(); }
  static V Set1(float x) { return _mm512_set1_ps(x); }
  static V Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static V Add(V a, V b) { return _mm512_add_ps(a, b); }
  static V Sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V Fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V Max(V a, V b) { return _mm512_max_ps(a, b); }
  static V Exp2(V x) { return Exp2V<6>(x); }
  template <int kCount>
  static void Exp2Seen(V (&x)[kCount]) {  // of scores that count
#pragma GCC unroll 4
    for (V& element : x) element = Exp2V<6>(element);
  }
  static V Tanh(V x) { return TanhV(x); }
  static V SafeMax(V m) { return cpu::SafeMax(m); }
  static bool AnyGreater(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static float MaxOf(V x) { return _mm512_reduce_max_ps(x); }
  static float SumOf(V x) { return _mm512_reduce_add_ps(x); }
  static V SumEach(V (&r)[kLanes]) { return cpu::SumEach(r); }
  // Lanes whose bit is 0 become -inf.
  static V KeepLanes(V x, uint32_t lanes) { return _mm512_mask_mov_ps(_mm512_set1_ps(kNegInf), static_cast<__mmask16>(lanes), x); }
  static uint32_t InRange(const int32_t* begin, const int32_t* end, int32_t index) {
    const __m512i i = _mm512_set1_epi32(index);
    return _mm512_cmple_epi32_mask(_mm512_load_si512(begin), i) & _mm512_cmpgt_epi32_mask(_mm512_load_si512(end), i);
  }

  // 16 elements widened to fp32, or the 8 that a head_dim of 8 mod 16 leaves at the end.
  static V Widen(const float* p) { return _mm512_loadu_ps(p); }
  static V Widen(const BF16* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static V Widen(const F16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V WidenHalf(const float* p) { return _mm512_zextps256_ps512(_mm256_loadu_ps(p)); }
  static V WidenHalf(const BF16* p) {
    const __m256i x = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
    return _mm512_zextps256_ps512(_mm256_castsi256_ps(x));
  }
  static V WidenHalf(const F16* p) {
    return _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static void StoreHalf(float* p, V x) { _mm256_storeu_ps(p, _mm512_castps512_ps256(x)); }
  // The arithmetic of BF16::FromFloat.
  static void StoreBf16(BF16* p, V x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
  }

  // Dense tiles: groups of rows that share elements of K and V in registers; an FMA here reads and broadcasts one itself.
  static constexpr int kDenseGroups = 1;
  static constexpr int32_t kDenseMinRows = kLanes / 2 + 1;  // as in TileKernels
  // Stream tiles: sums that fit the registers beside operands, and rows that pass together.
  static constexpr int kSums = 16, kStreamRows = 8;
  // 32 elements as two vectors. bf16 elements come apart into even and odd ones, one instruction each.
  template <class T>
  static constexpr bool kEvenOdd = std::is_same_v<T, BF16>;
  static void WidenPair(const BF16* p, V& even, V& odd) { SplitPairs(_mm512_loadu_si512(p), even, odd); }
  template <class T>
  static void WidenPair(const T* p, V& a, V& b) {
    a = Widen(p);
    b = Widen(p + kLanes);
  }
  // The same for the last `count` elements of a head: 8, 16 or 24; zeros follow.
  static void WidenTail(const BF16* p, int32_t count, V& even, V& odd) {
    SplitPairs(_mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, p), even, odd);
  }
  template <class T>
  static void WidenTail(const T* p, int32_t count, V& a, V& b) {
    a = count >= kLanes ? Widen(p) : WidenHalf(p);
    b = count > kLanes ? WidenHalf(p + kLanes) : Zero();
  }
  static V Even(V a, V b) { return _mm512_permutex2var_ps(a, Indices(0, 2), b); }
  static V Odd(V a, V b) { return _mm512_permutex2var_ps(a, Indices(1, 2), b); }
  static V ZipLow(V even, V odd) { return _mm512_permutex2var_ps(even, ZipIndices(0), odd); }
  static V ZipHigh(V even, V odd) { return _mm512_permutex2var_ps(even, ZipIndices(8), odd); }

 private:
  static void SplitPairs(__m512i pairs, V& even, V& odd) {
    even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static __m512i Indices(int first, int step) {
    const __m512i i = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(_mm512_mullo_epi32(i, _mm512_set1_epi32(step)), _mm512_set1_epi32(first));
  }
  static __m512i ZipIndices(int first) {
    const __m512i i = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_add_epi32(i, _mm512_set1_epi32(first));
  }
};

}  // namespace
}  // namespace coppice::attention::cpu
