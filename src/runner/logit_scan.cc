#include "runner/logit_scan.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runner/logit_scan.cc"
#include "hwy/foreach_target.h"  // this file again, once per instruction set
#include "hwy/highway.h"
// after highway.h
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

float BlockMaximum(const float* logits, int64_t count) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  auto best = hn::Set(d, hwy::LowestValue<float>());
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) best = hn::Max(best, hn::LoadU(d, logits + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; i < count; ++i) result = std::max(result, logits[i]);
  return result;
}

float MaximaKernel(const float* logits, int64_t count, float* maxima) {
  float result = hwy::LowestValue<float>();
  for (int64_t begin = 0; begin < count; begin += kLogitBlock) {
    const float block = BlockMaximum(logits + begin, std::min(kLogitBlock, count - begin));
    *maxima++ = block;
    result = std::max(result, block);
  }
  return result;
}

// exp((x - max) * inverse_temperature); NaN stays NaN.
HWY_INLINE hn::Vec<D> ScaledExp(hn::Vec<D> x, float max, float inverse_temperature) {
  const D d;
  const auto scaled = hn::Mul(hn::Sub(x, hn::Set(d, max)), hn::Set(d, inverse_temperature));
  // e^-100 vanishes beside the maximum's 1, and Exp needs a finite argument.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Max(scaled, hn::Set(d, -100.0f))));
}

// The exponentials go to `exps` and the sum of each block to `sums`, where not null. Returns the sum of all.
double ExpsKernel(const float* logits, int64_t count, float max, float inverse_temperature, float* exps, float* sums) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kLogitBlock) {
    const int64_t end = std::min(begin + kLogitBlock, count);
    auto sum = hn::Zero(d);
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const auto e = ScaledExp(hn::LoadU(d, logits + i), max, inverse_temperature);
      if (exps != nullptr) hn::StoreU(e, d, exps + i);
      sum = hn::Add(sum, e);
    }
    float block = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; i < end; ++i) {
      const float e = hn::GetLane(ScaledExp(hn::Set(d, logits[i]), max, inverse_temperature));
      if (exps != nullptr) exps[i] = e;
      block += e;
    }
    if (sums != nullptr) *sums++ = block;
    total += block;
  }
  return total;
}

}  // namespace coppice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice {

HWY_EXPORT(MaximaKernel);
HWY_EXPORT(ExpsKernel);

float ScanMaxima(std::span<const float> logits, std::span<float> maxima) {
  return HWY_DYNAMIC_DISPATCH(MaximaKernel)(logits.data(), static_cast<int64_t>(logits.size()), maxima.data());
}

double ScanExpSums(std::span<const float> logits, float max, float inverse_temperature, std::span<float> sums) {
  return HWY_DYNAMIC_DISPATCH(ExpsKernel)(logits.data(), static_cast<int64_t>(logits.size()), max, inverse_temperature, nullptr,
                                          sums.data());
}

double ScanExps(std::span<const float> logits, float max, float inverse_temperature, std::span<float> exps) {
  return HWY_DYNAMIC_DISPATCH(ExpsKernel)(logits.data(), static_cast<int64_t>(logits.size()), max, inverse_temperature, exps.data(),
                                          nullptr);
}

}  // namespace coppice
#endif
