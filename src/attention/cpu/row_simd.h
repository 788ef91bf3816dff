// The row operations of row_ops.h over a Simd type (tile_vectors.h). Include it inside a region compiled for that instruction
// set. Layer: attention/cpu.
#pragma once

#include "attention/cpu/row_ops.h"

namespace coppice::attention::cpu {
namespace {

template <class Simd>
struct RowSimd {
  using V = typename Simd::V;
  static constexpr int32_t W = Simd::kLanes;

  static void Fold(float* into, float keep, const float* from, float add, int32_t count) {
    const V kept = Simd::Set1(keep), added = Simd::Set1(add);
    int32_t e = 0;
    for (; e + W <= count; e += W) {
      Simd::Store(into + e, Simd::Fma(Simd::Load(into + e), kept, Simd::Load(from + e) * added));
    }
    for (; e < count; ++e) into[e] = __builtin_fmaf(into[e], keep, from[e] * add);
  }

  static void StoreF32(const float* acc, float scale, int32_t count, float* out) {
    const V factor = Simd::Set1(scale);
    int32_t e = 0;
    for (; e + W <= count; e += W) Simd::Store(out + e, Simd::Load(acc + e) * factor);
    for (; e < count; ++e) out[e] = acc[e] * scale;
  }

  static void StoreBf16(const float* acc, float scale, int32_t count, BF16* out) {
    const V factor = Simd::Set1(scale);
    int32_t e = 0;
    for (; e + W <= count; e += W) Simd::StoreBf16(out + e, Simd::Load(acc + e) * factor);
    for (; e < count; ++e) out[e] = BF16::FromFloat(acc[e] * scale);
  }

  static void LoadBf16(const BF16* from, int32_t count, float* to) {
    int32_t e = 0;
    for (; e + W <= count; e += W) Simd::Store(to + e, Simd::Widen(from + e));
    for (; e < count; ++e) to[e] = from[e].ToFloat();
  }

  static constexpr RowKernels kKernels = {Fold, StoreF32, StoreBf16, LoadBf16};
};

}  // namespace
}  // namespace coppice::attention::cpu
