#include "attention/cuda/kernel_variants.h"

namespace coppice::attention::cuda {

// Defined by the instantiation files kernel_<dtype>_d<head_dim>_<schedule>.cu.
extern const KernelVariant kBF16D64Sequential, kBF16D64Concurrent, kBF16D128Sequential, kBF16D128Concurrent;
extern const KernelVariant kF16D64Sequential, kF16D64Concurrent, kF16D128Sequential, kF16D128Concurrent;

VariantPair KernelVariants(DType dtype, int head_dim) {
  if (dtype == DType::kBF16) {
    if (head_dim <= 64) return {&kBF16D64Sequential, &kBF16D64Concurrent};
    return {&kBF16D128Sequential, &kBF16D128Concurrent};
  }
  if (head_dim <= 64) return {&kF16D64Sequential, &kF16D64Concurrent};
  return {&kF16D128Sequential, &kF16D128Concurrent};
}

}  // namespace coppice::attention::cuda
