// The operations that tile_simd.h is written in, for AVX2 with FMA and F16C. Include it inside a region compiled for them.
// Layer: attention/cpu.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "attention/cpu/exp2.h"
#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {
namespace {

struct Simd256 {
  static constexpr const char* kDenseName = "avx2 dense tile";
  static constexpr const char* kStreamName = "avx2 stream tile";
  static constexpr int32_t kLanes = 8;
  using V = __m256;

  static V Zero() { return _mm256_setzero_ps(); }
  static V Set1(float x) { return _mm256_set1_ps(x); }
  static V Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, V x) { _mm256_storeu_ps(p, x); }
  static V Add(V a, V b) { return _mm256_add_ps(a, b); }
  static V Sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V Mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V Fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V Max(V a, V b) { return _mm256_max_ps(a, b); }

  // The polynomial of exp2.h.
  static V Exp2(V x) {
    V p[1] = {x};
    Exp2Seen(p);
    return _mm256_andnot_ps(_mm256_cmp_ps(x, Set1(kExp2Underflow), _CMP_LT_OQ), p[0]);
  }
  // The same, but 2^-126 below the underflow: of scores that count, where it is as good as 0. Chains of dependent instructions
  // side by side: one after the other, they fill the scheduler with what waits.
  template <int kCount>
  [[gnu::always_inline]] static void Exp2Seen(V (&x)[kCount]) {
    V shifted[kCount], p[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      x[i] = _mm256_max_ps(x[i], Set1(kExp2Underflow));
      shifted[i] = Add(x[i], Set1(0x1.8p23f));
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      x[i] = Sub(x[i], Sub(shifted[i], Set1(0x1.8p23f)));
      p[i] = Set1(kExp2C6);
    }
#pragma GCC unroll 6
    for (const float c : {kExp2C5, kExp2C4, kExp2C3, kExp2C2, kExp2C1, 1.0f}) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) p[i] = Fma(p[i], x[i], Set1(c));
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted[i]), 23);
      x[i] = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p[i]), exponent));
    }
  }

  // As TanhV of simd512.h.
  static V Tanh(V x) {
    const V z = Mul(x, x);
    V p = Set1(-5.70498872745e-3f);
    for (const float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) p = Fma(p, z, Set1(c));
    const V small = Fma(Mul(p, z), x, x), sign = _mm256_and_ps(x, Set1(-0.0f)), magnitude = _mm256_andnot_ps(Set1(-0.0f), x);
    // 2^x overflows its exponent past 126; tanh is 1 long before.
    const V e = Exp2(_mm256_min_ps(Mul(magnitude, Set1(2 * kLog2E)), Set1(64.0f)));
    const V large = Sub(Set1(1.0f), _mm256_div_ps(Set1(2.0f), Add(e, Set1(1.0f))));
    return _mm256_blendv_ps(small, _mm256_or_ps(large, sign), _mm256_cmp_ps(magnitude, Set1(0.625f), _CMP_GE_OQ));
  }

  static V SafeMax(V m) { return _mm256_and_ps(m, _mm256_cmp_ps(m, Set1(kNegInf), _CMP_NEQ_OQ)); }
  static bool AnyGreater(V a, V b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  static float MaxOf(V x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static float SumOf(V x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static V SumEach(V (&r)[kLanes]) {
    const V low = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
    const V high = _mm256_hadd_ps(_mm256_hadd_ps(r[4], r[5]), _mm256_hadd_ps(r[6], r[7]));
    return Add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
  }
  static V KeepLanes(V x, uint32_t lanes) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i kept = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(lanes)), bit), bit);
    return _mm256_blendv_ps(Set1(kNegInf), x, _mm256_castsi256_ps(kept));
  }
  static uint32_t InRange(const int32_t* begin, const int32_t* end, int32_t index) {
    const __m256i i = _mm256_set1_epi32(index);
    const __m256i before = _mm256_cmpgt_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(begin)), i);
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(end)), i);
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_andnot_si256(before, inside))));
  }

  static V Widen(const float* p) { return _mm256_loadu_ps(p); }
  static V Widen(const BF16* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
  }
  static V Widen(const F16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  // head_dim is a multiple of 8: no partial vectors.
  template <class T>
  static V WidenHalf(const T* p) {
    return Widen(p);
  }
  static void StoreHalf(float* p, V x) { Store(p, x); }
  // The arithmetic of BF16::FromFloat.
  static void StoreBf16(BF16* p, V x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }

  // 12 sums, 3 vectors of rows, 1 element: an element read serves three instructions, where one that served a single one would
  // bound them (one and a half such reads a cycle beside two FMA).
  static constexpr int kDenseGroups = 3;
  // Over 1,024 tokens stream tiles take 0.7 of a dense tile's time for 12 rows, 0.9 for 18 and as long for 24 to 36.
  static constexpr int32_t kDenseMinRows = 19;

  // As in simd512.h.
  static constexpr int kSums = 8, kStreamRows = 4;
  template <class T>
  static constexpr bool kEvenOdd = std::is_same_v<T, BF16>;
  static void WidenPair(const BF16* p, V& even, V& odd) {
    SplitPairs(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), even, odd);
  }
  template <class T>
  static void WidenPair(const T* p, V& a, V& b) {
    a = Widen(p);
    b = Widen(p + kLanes);
  }
  static void WidenTail(const BF16* p, int32_t, V& even, V& odd) {
    SplitPairs(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), even, odd);
  }
  template <class T>
  static void WidenTail(const T* p, int32_t, V& a, V& b) {
    a = Widen(p);
    b = Zero();
  }
  static V Even(V a, V b) { return InOrder(_mm256_shuffle_ps(a, b, 0x88)); }
  static V Odd(V a, V b) { return InOrder(_mm256_shuffle_ps(a, b, 0xdd)); }
  static V ZipLow(V even, V odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd), 0x20);
  }
  static V ZipHigh(V even, V odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd), 0x31);
  }

 private:
  static void SplitPairs(__m256i pairs, V& even, V& odd) {
    even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // Quarters 0 2 1 3 -> 0 1 2 3.
  static V InOrder(V x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); }
};

}  // namespace
}  // namespace coppice::attention::cpu
