// The vectors that CPU kernels are written in (docs/architecture.md, "Vector code"): the compiler's vector types, whose operators
// are the arithmetic, and here the operations that no operator stands for. They are the types of the intrinsics too, so a kernel
// uses one of those where it needs a certain instruction. Include it inside what is compiled for the instruction set; everything
// has internal linkage, so that no other code can pick it up. 4 lanes: SSE4; 8: AVX2, FMA, F16C; 16: AVX-512 F, BW, VL, DQ. Layer:
// core, private.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "coppice/core/types.h"

namespace coppice {
namespace {

// Apart from Vectors: g++ takes such a type for its element's inside the template that makes it.
template <int kLanes>
struct VectorTypes {
  typedef float F32 __attribute__((vector_size(4 * kLanes)));
  typedef int32_t I32 __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t U32 __attribute__((vector_size(4 * kLanes)));
  typedef int16_t I16 __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
};

template <int kLaneCount>
struct Vectors {
  static_assert(kLaneCount == 4 || kLaneCount == 8 || kLaneCount == 16);
  static constexpr int kLanes = kLaneCount;
  using F32 = typename VectorTypes<kLanes>::F32;
  using I32 = typename VectorTypes<kLanes>::I32;
  using U32 = typename VectorTypes<kLanes>::U32;
  using I16 = typename VectorTypes<kLanes>::I16;        // two a lane
  using Halves = typename VectorTypes<kLanes>::Halves;  // one a lane

  // Pointers need no alignment, and what lies there may be of any type. Not by memcpy, after which g++ 12 moves vectors about.
  template <class Vector>
  struct [[gnu::packed, gnu::may_alias]] Unaligned {
    Vector value;
  };
  template <class Vector>
  [[gnu::always_inline]] static Vector LoadAs(const void* p) {
    return static_cast<const Unaligned<Vector>*>(p)->value;
  }
  template <class Vector>
  [[gnu::always_inline]] static void StoreAs(void* p, Vector v) {
    static_cast<Unaligned<Vector>*>(p)->value = v;
  }
  [[gnu::always_inline]] static F32 Load(const float* p) { return LoadAs<F32>(p); }
  [[gnu::always_inline]] static void Store(float* p, F32 x) { StoreAs(p, x); }
  [[gnu::always_inline]] static F32 Set1(float x) { return x - F32{}; }  // - 0 changes no bit, which + 0 does to -0

  [[gnu::always_inline]] static I32 LaneNumbers() {
    I32 lanes;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) lanes[i] = i;
    return lanes;
  }

  // a * b + c, rounded once (with 4 lanes as the compiler likes).
  [[gnu::always_inline]] static F32 Fma(F32 a, F32 b, F32 c) {
    if constexpr (kLanes == 16) {
      return _mm512_fmadd_ps(a, b, c);
    } else if constexpr (kLanes == 8) {
      return _mm256_fmadd_ps(a, b, c);
    } else {
      return a * b + c;
    }
  }
  // sum + the two products of 16-bit integers in each lane. kVnni: by one instruction of AVX-512 VNNI (16 lanes) or AVX-VNNI (8),
  // which only the caller knows: g++ 12 defines no macros for a region's instruction set.
  template <bool kVnni>
  [[gnu::always_inline]] static I32 AddPairs(I32 sum, U32 a, U32 b) {
    static_assert(!kVnni || kLanes >= 8);
    if constexpr (kLanes == 16) {
      const __m512i x = reinterpret_cast<__m512i>(a), y = reinterpret_cast<__m512i>(b);
      if constexpr (kVnni) return reinterpret_cast<I32>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sum), x, y));
      return sum + reinterpret_cast<I32>(_mm512_madd_epi16(x, y));
    } else if constexpr (kLanes == 8) {
      const __m256i x = reinterpret_cast<__m256i>(a), y = reinterpret_cast<__m256i>(b);
      if constexpr (kVnni) return reinterpret_cast<I32>(_mm256_dpwssd_avx_epi32(reinterpret_cast<__m256i>(sum), x, y));
      return sum + reinterpret_cast<I32>(_mm256_madd_epi16(x, y));
    } else {
      return sum + reinterpret_cast<I32>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
    }
  }
  // b where one is NaN. As an operator, with a constant, these become a comparison and a choice.
  [[gnu::always_inline]] static F32 Max(F32 a, F32 b) {
    if constexpr (kLanes == 16) return _mm512_maskz_max_ps(0xffff, a, b);
    if constexpr (kLanes == 8) return _mm256_max_ps(a, b);
    if constexpr (kLanes == 4) return _mm_max_ps(a, b);
  }
  [[gnu::always_inline]] static F32 Min(F32 a, F32 b) {
    if constexpr (kLanes == 16) return _mm512_maskz_min_ps(0xffff, a, b);
    if constexpr (kLanes == 8) return _mm256_min_ps(a, b);
    if constexpr (kLanes == 4) return _mm_min_ps(a, b);
  }

  // kLanes integers. A conversion of vectors does them in two halves (GCC 12).
  [[gnu::always_inline]] static U32 WidenWords(const uint16_t* p) {
    const Halves words = LoadAs<Halves>(p);
    if constexpr (kLanes == 16) return reinterpret_cast<U32>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(words)));
    if constexpr (kLanes == 8) return reinterpret_cast<U32>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(words)));
    if constexpr (kLanes == 4) return __builtin_convertvector(words, U32);
  }
  // kLanes elements as floats.
  [[gnu::always_inline]] static F32 Widen(const float* p) { return Load(p); }
  [[gnu::always_inline]] static F32 Widen(const BF16* p) { return Even(WidenWords(reinterpret_cast<const uint16_t*>(p))); }
  [[gnu::always_inline]] static F32 Widen(const F16* p) {
    if constexpr (kLanes == 16) {
      // The unmasked form warns of its undefined operand (GCC 12).
      return _mm512_maskz_cvtph_ps(0xffff, LoadAs<__m256i>(p));
    } else if constexpr (kLanes == 8) {
      return _mm256_cvtph_ps(LoadAs<__m128i>(p));
    } else {
      // Scaling by 2^112 moves the exponent's bias and makes subnormals right; infinities and NaNs get their exponent afterwards.
      const U32 bits = WidenWords(reinterpret_cast<const uint16_t*>(p));
      const U32 scaled = reinterpret_cast<U32>(reinterpret_cast<F32>((bits & 0x7fffu) << 13) * 0x1p112f);
      const U32 special = (bits & 0x7c00u) == 0x7c00u ? U32{} + 0x7f800000u : U32{};
      return reinterpret_cast<F32>(scaled | special | (bits & 0x8000u) << 16);
    }
  }
  // Pairs of bf16 as floats: the even elements and the odd ones, one instruction each.
  [[gnu::always_inline]] static F32 Even(U32 pairs) { return reinterpret_cast<F32>(pairs << 16); }
  [[gnu::always_inline]] static F32 Odd(U32 pairs) { return reinterpret_cast<F32>(pairs & 0xffff0000u); }

  // kLanes elements, each as BF16::FromFloat gives it.
  [[gnu::always_inline]] static void StoreBf16(void* p, F32 x) {
    const U32 bits = reinterpret_cast<U32>(x), rounded = bits + (0x7fffu + (bits >> 16 & 1u));
    StoreAs(p, __builtin_convertvector((x == x ? rounded : bits | 0x400000u) >> 16, Halves));
  }
};

}  // namespace
}  // namespace coppice
