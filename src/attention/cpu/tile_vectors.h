// The operations that tile_simd.h and row_simd.h are written in, beyond those of core/cpu/vectors.h: 2^x, tanh, masks, sums across
// lanes, and the tiles' shape in registers. 8 lanes: AVX2, FMA and F16C; 16: AVX-512. Include it inside a region compiled for
// those. Layer: attention/cpu.
#pragma once

#include <type_traits>

#include "attention/cpu/exp2.h"
#include "attention/cpu/softmax_state.h"
#include "core/cpu/vectors.h"

namespace coppice::attention::cpu {
namespace {

template <int kLaneCount>
struct TileVectors : Vectors<kLaneCount> {
  using Base = Vectors<kLaneCount>;
  using Base::Fma, Base::kLanes, Base::Load, Base::Max, Base::Min, Base::Set1, Base::Store, Base::Widen;
  using typename Base::F32, typename Base::I32, typename Base::U32;
  using V = F32;
  static constexpr bool kWide = kLanes == 16;
  static constexpr const char* kDenseName = kWide ? "avx512 dense tile" : "avx2 dense tile";
  static constexpr const char* kStreamName = kWide ? "avx512 stream tile" : "avx2 stream tile";

  // Dense tiles: groups of rows that share an element of K or V in a register. With 16 lanes an FMA reads and broadcasts one
  // itself. With 8, 12 sums, 3 vectors of rows, 1 element: an element read serves three instructions, where one that served a
  // single one would bound them (one and a half such reads a cycle beside two FMA).
  static constexpr int kDenseGroups = kWide ? 1 : 3;
  // 16 lanes: as in TileKernels. 8: over 1,024 tokens stream tiles take 0.7 of a dense tile's time for 12 rows, 0.9 for 18 and as
  // long for 24 to 36.
  static constexpr int32_t kDenseMinRows = kWide ? kLanes / 2 + 1 : 19;
  // Stream tiles: sums that fit the registers beside operands, and rows that pass together.
  static constexpr int kSums = kLanes, kStreamRows = kWide ? 8 : 4;

  // ---------------------------------------------------------------------------------------------------------- 2^x and tanh

  // 2^x; 0 for -inf.
  [[gnu::always_inline]] static V Exp2(V x) {
    V p[1] = {x};
    Exp2Seen(p);
    if constexpr (kWide) return p[0];
    return x < kExp2Underflow ? V{} : p[0];
  }
  // The same of scores that count; with 8 lanes 2^-126 below the underflow, where it is as good as 0. Chains of dependent
  // instructions side by side: one after the other, they fill the scheduler with what waits.
  template <int kCount>
  [[gnu::always_inline]] static void Exp2Seen(V (&x)[kCount]) {
    if constexpr (kWide) {
#pragma GCC unroll 4
      for (V& element : x) element = ScaledExp2<6>(element);
    } else {
      ShiftedExp2(x);
    }
  }

  // 2^x with AVX-512. Degree 6: relative error 1.2e-7 (2e-9 of it from the polynomial); degree 5: 2e-7 (7.5e-8), for weights that
  // are summed and then rounded to bf16 (4e-3); degree 3: 7.5e-5, for weights that are rounded before all else. Minimax on [0, 1);
  // x - floor(x) of -inf is 0 and scalef gives 0 there.
  template <int kDegree>
  [[gnu::always_inline]] static V ScaledExp2(V x) {
    static_assert(kWide && (kDegree == 3 || kDegree == 5 || kDegree == 6));
    const V f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const auto polynomial = [f](float highest, auto... others) {
      V p = Set1(highest);
      ((p = Fma(p, f, Set1(others))), ...);
      return p;
    };
    if constexpr (kDegree == 6) {
      return _mm512_scalef_ps(polynomial(0.00021702255447468804f, 0.0012439687828550542f, 0.009678840996293153f,
                                         0.0554833419843034f, 0.24022983627406658f, 0.6931469838406079f, 1.0000000018557997f),
                              x);
    } else if constexpr (kDegree == 5) {
      return _mm512_scalef_ps(polynomial(0.0018775766735585646f, 0.008989340092747268f, 0.055826318053292245f, 0.24015361704365748f,
                                         0.6931530732002869f, 0.9999999250635426f),
                              x);
    } else {
      return _mm512_scalef_ps(polynomial(0.07802452268953328f, 0.2260671553970887f, 0.6958335404792924f, 0.9999252185659143f), x);
    }
  }

  // The polynomial of exp2.h; 2^-126 below the underflow.
  template <int kCount>
  [[gnu::always_inline]] static void ShiftedExp2(V (&x)[kCount]) {
    V shifted[kCount], p[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      x[i] = Max(x[i], Set1(kExp2Underflow));
      shifted[i] = x[i] + 0x1.8p23f;
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      x[i] = x[i] - (shifted[i] - 0x1.8p23f);
      p[i] = Set1(kExp2C6);
    }
#pragma GCC unroll 6
    for (const float c : {kExp2C5, kExp2C4, kExp2C3, kExp2C2, kExp2C1, 1.0f}) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) p[i] = Fma(p[i], x[i], Set1(c));
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      x[i] = reinterpret_cast<V>(reinterpret_cast<I32>(p[i]) + (reinterpret_cast<I32>(shifted[i]) << 23));
    }
  }

  // tanh with an absolute error near 1e-7 and a relative one near 2e-7 around 0 (odd polynomial of Cephes below 0.625).
  static V Tanh(V x) {
    const V z = x * x;
    V p = Set1(-5.70498872745e-3f);
#pragma GCC unroll 4
    for (const float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) p = Fma(p, z, Set1(c));
    const V small = Fma(p * z, x, x);
    const U32 sign = reinterpret_cast<U32>(x) & 0x80000000u;
    const V magnitude = reinterpret_cast<V>(reinterpret_cast<U32>(x) & 0x7fffffffu);
    V e = magnitude * (2 * kLog2E);
    if constexpr (!kWide) e = Min(e, Set1(64.0f));  // its 2^x overflows the exponent past 126; tanh is 1 long before
    e = Exp2(e);
    const V large = reinterpret_cast<V>(reinterpret_cast<U32>(1.0f - 2.0f / (e + 1.0f)) | sign);
    return magnitude >= 0.625f ? large : small;
  }

  // ---------------------------------------------------------------------------------------------------------- masks

  // The maximum to subtract: 0 for lanes that have seen nothing, whose scores are all -inf.
  [[gnu::always_inline]] static V SafeMax(V m) { return m != kNegInf ? m : V{}; }
  [[gnu::always_inline]] static bool AnyGreater(V a, V b) {
    if constexpr (kWide) {
      return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
    } else {
      return _mm256_movemask_ps(reinterpret_cast<V>(a > b)) != 0;
    }
  }
  // Lanes whose bit is 0 become -inf.
  [[gnu::always_inline]] static V KeepLanes(V x, uint32_t lanes) {
    if constexpr (kWide) {
      return _mm512_mask_mov_ps(Set1(kNegInf), static_cast<__mmask16>(lanes), x);
    } else {
      const I32 bit = 1 << Base::LaneNumbers();
      return (static_cast<int32_t>(lanes) & bit) == bit ? x : Set1(kNegInf);
    }
  }
  // Bit i: begin[i] <= index < end[i].
  [[gnu::always_inline]] static uint32_t InRange(const int32_t* begin, const int32_t* end, int32_t index) {
    const I32 first = Base::template LoadAs<I32>(begin), last = Base::template LoadAs<I32>(end);
    if constexpr (kWide) {
      const I32 i = I32{} + index;
      return _mm512_cmple_epi32_mask(reinterpret_cast<__m512i>(first), reinterpret_cast<__m512i>(i)) &
             _mm512_cmpgt_epi32_mask(reinterpret_cast<__m512i>(last), reinterpret_cast<__m512i>(i));
    } else {
      const __m256i before = reinterpret_cast<__m256i>(first > index), inside = reinterpret_cast<__m256i>(last > index);
      return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<V>(_mm256_andnot_si256(before, inside))));
    }
  }

  // ---------------------------------------------------------------------------------------------------------- across lanes

  // Upper lanes onto lower ones, down to one.
  template <class F>
  [[gnu::always_inline]] static float Fold(V x, F f) {
    if constexpr (kWide) {
      return TileVectors<8>::Fold(f(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)), f);
    } else {
      __m128 y = f(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
      y = f(y, _mm_movehl_ps(y, y));
      return f(y, _mm_movehdup_ps(y))[0];
    }
  }
  static float MaxOf(V x) {
    return Fold(x, [](auto a, auto b) { return a > b ? a : b; });
  }
  static float SumOf(V x) {
    return Fold(x, [](auto a, auto b) { return a + b; });
  }
  // 128-bit quarters of a, then of b, added in pairs.
  [[gnu::always_inline]] static V AddQuarters(V a, V b) {
    return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
  }
  // Element i is the sum of the elements of r[i]. A fixed tree of additions.
  [[gnu::always_inline]] static V SumEach(V (&r)[kLanes]) {
    if constexpr (kWide) {
      V t[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) t[i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]) + _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512d a = reinterpret_cast<__m512d>(t[2 * i]), b = reinterpret_cast<__m512d>(t[2 * i + 1]);
        t[i] = reinterpret_cast<V>(_mm512_unpacklo_pd(a, b)) + reinterpret_cast<V>(_mm512_unpackhi_pd(a, b));
      }
      return AddQuarters(AddQuarters(t[0], t[1]), AddQuarters(t[2], t[3]));
    } else {
      const V low = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
      const V high = _mm256_hadd_ps(_mm256_hadd_ps(r[4], r[5]), _mm256_hadd_ps(r[6], r[7]));
      return _mm256_permute2f128_ps(low, high, 0x20) + _mm256_permute2f128_ps(low, high, 0x31);
    }
  }

  // ---------------------------------------------------------------------------------------------------------- rows of elements

  // The 8 elements that a head_dim of 8 mod 16 leaves at the end.
  template <class T>
  [[gnu::always_inline]] static V WidenHalf(const T* p) {
    if constexpr (kWide) {
      return _mm512_zextps256_ps512(Vectors<8>::Widen(p));
    } else {
      return Widen(p);
    }
  }
  [[gnu::always_inline]] static void StoreHalf(float* p, V x) {
    if constexpr (kWide) {
      Vectors<8>::Store(p, _mm512_castps512_ps256(x));
    } else {
      Store(p, x);
    }
  }

  // 2 * kLanes elements as two vectors. bf16 elements come apart into even and odd ones.
  template <class T>
  static constexpr bool kEvenOdd = std::is_same_v<T, BF16>;
  template <class T>
  [[gnu::always_inline]] static void WidenPair(const T* p, V& a, V& b) {
    if constexpr (kEvenOdd<T>) {
      const U32 pairs = Base::template LoadAs<U32>(p);
      a = Base::Even(pairs);
      b = Base::Odd(pairs);
    } else {
      a = Widen(p);
      b = Widen(p + kLanes);
    }
  }
  // The same for the last `count` elements of a head, a multiple of 8 below 2 * kLanes; zeros follow.
  template <class T>
  [[gnu::always_inline]] static void WidenTail(const T* p, int32_t count, V& a, V& b) {
    if constexpr (kEvenOdd<T>) {
      U32 pairs;
      if constexpr (kWide) {
        pairs = reinterpret_cast<U32>(_mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, p));
      } else {
        pairs = reinterpret_cast<U32>(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
      }
      a = Base::Even(pairs);
      b = Base::Odd(pairs);
    } else {
      a = count >= kLanes ? Widen(p) : WidenHalf(p);
      b = count > kLanes ? WidenHalf(p + kLanes) : V{};
    }
  }
  // The elements of a, then b: those at even places, those at odd ones; and back, the first half and the second.
  [[gnu::always_inline]] static V EvenPlaces(V a, V b) { return __builtin_shuffle(a, b, 2 * Base::LaneNumbers()); }
  [[gnu::always_inline]] static V OddPlaces(V a, V b) { return __builtin_shuffle(a, b, 2 * Base::LaneNumbers() + 1); }
  [[gnu::always_inline]] static V ZipLow(V even, V odd) { return __builtin_shuffle(even, odd, ZipPlaces()); }
  [[gnu::always_inline]] static V ZipHigh(V even, V odd) { return __builtin_shuffle(even, odd, ZipPlaces() + kLanes / 2); }

 private:
  [[gnu::always_inline]] static I32 ZipPlaces() { return Base::LaneNumbers() / 2 + (Base::LaneNumbers() & 1) * kLanes; }
};

}  // namespace
}  // namespace coppice::attention::cpu
