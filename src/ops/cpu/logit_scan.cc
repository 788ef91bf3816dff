// Layer: ops.
#include "ops/logit_scan.h"

#include "ops/cpu/kernels.h"

namespace coppice::ops {
namespace {

const Kernels& BestKernels() {
  static const Kernels& kernels = SelectKernels();
  return kernels;
}

}  // namespace

float ScanMaxima(std::span<const float> logits, std::span<float> maxima) {
  return BestKernels().block_maxima(logits.data(), std::ssize(logits), maxima.data());
}

double ScanExpSums(std::span<const float> logits, float max, float inverse_temperature, std::span<float> sums) {
  return BestKernels().block_exps(logits.data(), std::ssize(logits), max, inverse_temperature, nullptr, sums.data());
}

double ScanExps(std::span<const float> logits, float max, float inverse_temperature, std::span<float> exps) {
  return BestKernels().block_exps(logits.data(), std::ssize(logits), max, inverse_temperature, exps.data(), nullptr);
}

}  // namespace coppice::ops
