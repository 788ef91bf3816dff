#include "attention/cpu/row_ops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/row_ops.cc"
#include "hwy/foreach_target.h"  // this file again, once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// f(tag, e) for whole vectors of [0, count), then, as a head_dim of the kernels is a multiple of 8, for vectors of 8 and single
// elements.
template <class F>
HWY_INLINE void ForEachVector(int32_t count, F f) {
  int32_t e = 0;
  const auto cover = [&](auto tag) HWY_ATTR {
    for (const auto lanes = static_cast<int32_t>(hn::Lanes(tag)); e + lanes <= count; e += lanes) f(tag, e);
  };
  cover(hn::ScalableTag<float>());
  cover(hn::CappedTag<float, 8>());
  cover(hn::CappedTag<float, 1>());
}

void FoldKernel(float* into, float keep, const float* from, float add, int32_t count) {
  ForEachVector(count, [&](auto d, int32_t e) HWY_ATTR {
    const auto added = hn::Mul(hn::LoadU(d, from + e), hn::Set(d, add));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, into + e), hn::Set(d, keep), added), d, into + e);
  });
}

void StoreF32Kernel(const float* acc, float scale, int32_t count, float* out) {
  ForEachVector(count,
                [&](auto d, int32_t e) HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, acc + e), hn::Set(d, scale)), d, out + e); });
}

// The arithmetic of BF16::FromFloat.
void StoreBf16Kernel(const float* acc, float scale, int32_t count, uint16_t* out) {
  ForEachVector(count, [&](auto d, int32_t e) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> bits;
    const auto x = hn::Mul(hn::LoadU(d, acc + e), hn::Set(d, scale));
    const auto u = hn::BitCast(bits, x);
    const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(bits, 1u));
    const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(bits, 0x7fffu)));
    const auto quiet = hn::Or(u, hn::Set(bits, 0x400000u));
    const auto high = hn::ShiftRight<16>(hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(x)), quiet, rounded));
    const hn::Rebind<uint16_t, decltype(d)> half;
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<decltype(d)>(), high)), half, out + e);
  });
}

void LoadBf16Kernel(const uint16_t* from, int32_t count, float* to) {
  ForEachVector(count, [&](auto d, int32_t e) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> bits;
    const hn::Rebind<uint16_t, decltype(d)> half;
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(half, from + e)))), d, to + e);
  });
}

}  // namespace coppice::attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::attention::cpu {

HWY_EXPORT(FoldKernel);
HWY_EXPORT(StoreF32Kernel);
HWY_EXPORT(StoreBf16Kernel);
HWY_EXPORT(LoadBf16Kernel);

void FoldRow(float* into, float keep, const float* from, float add, int32_t head_dim) {
  HWY_DYNAMIC_DISPATCH(FoldKernel)(into, keep, from, add, head_dim);
}

void StoreRow(const float* acc, float scale, int32_t head_dim, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::kF32: HWY_DYNAMIC_DISPATCH(StoreF32Kernel)(acc, scale, head_dim, reinterpret_cast<float*>(out)); return;
    case DType::kBF16: HWY_DYNAMIC_DISPATCH(StoreBf16Kernel)(acc, scale, head_dim, reinterpret_cast<uint16_t*>(out)); return;
    case DType::kF16:
      std::transform(acc, acc + head_dim, reinterpret_cast<F16*>(out), [&](float x) { return F16::FromFloat(x * scale); });
      return;
  }
}

void LoadRow(const std::byte* from, int32_t head_dim, DType dtype, float* to) {
  switch (dtype) {
    case DType::kF32: std::copy_n(reinterpret_cast<const float*>(from), head_dim, to); return;
    case DType::kBF16: HWY_DYNAMIC_DISPATCH(LoadBf16Kernel)(reinterpret_cast<const uint16_t*>(from), head_dim, to); return;
    case DType::kF16: {
      const F16* halves = reinterpret_cast<const F16*>(from);
      std::transform(halves, halves + head_dim, to, [](F16 x) { return x.ToFloat(); });
      return;
    }
  }
}

}  // namespace coppice::attention::cpu
#endif
