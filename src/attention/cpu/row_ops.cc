#include "attention/cpu/row_ops.h"

#include <algorithm>

#include "attention/cpu/tile_avx2.h"
#include "attention/cpu/tile_avx512.h"

namespace coppice::attention::cpu {
namespace {

void FoldGeneric(float* into, float keep, const float* from, float add, int32_t count) {
  for (int32_t e = 0; e < count; ++e) into[e] = into[e] * keep + from[e] * add;
}
void StoreF32Generic(const float* acc, float scale, int32_t count, float* out) {
  std::transform(acc, acc + count, out, [=](float x) { return x * scale; });
}
void StoreBf16Generic(const float* acc, float scale, int32_t count, BF16* out) {
  std::transform(acc, acc + count, out, [=](float x) { return BF16::FromFloat(x * scale); });
}
void LoadBf16Generic(const BF16* from, int32_t count, float* to) {
  std::transform(from, from + count, to, [](BF16 x) { return x.ToFloat(); });
}

const RowKernels& Kernels() {
  static const RowKernels& kernels = RowKernelsOf(DetectIsa());
  return kernels;
}

}  // namespace

const RowKernels& RowKernelsOf([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return Avx512RowKernels();
  if (isa >= Isa::kAvx2) return Avx2RowKernels();
#endif
  static constexpr RowKernels kGeneric = {FoldGeneric, StoreF32Generic, StoreBf16Generic, LoadBf16Generic};
  return kGeneric;
}

void FoldRow(float* into, float keep, const float* from, float add, int32_t head_dim) {
  Kernels().fold(into, keep, from, add, head_dim);
}

void StoreRow(const float* acc, float scale, int32_t head_dim, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::kF32: Kernels().store_f32(acc, scale, head_dim, reinterpret_cast<float*>(out)); return;
    case DType::kBF16: Kernels().store_bf16(acc, scale, head_dim, reinterpret_cast<BF16*>(out)); return;
    case DType::kF16:
      std::transform(acc, acc + head_dim, reinterpret_cast<F16*>(out), [&](float x) { return F16::FromFloat(x * scale); });
      return;
  }
}

void LoadRow(const std::byte* from, int32_t head_dim, DType dtype, float* to) {
  switch (dtype) {
    case DType::kF32: std::copy_n(reinterpret_cast<const float*>(from), head_dim, to); return;
    case DType::kBF16: Kernels().load_bf16(reinterpret_cast<const BF16*>(from), head_dim, to); return;
    case DType::kF16: {
      const F16* halves = reinterpret_cast<const F16*>(from);
      std::transform(halves, halves + head_dim, to, [](F16 x) { return x.ToFloat(); });
      return;
    }
  }
}

}  // namespace coppice::attention::cpu
