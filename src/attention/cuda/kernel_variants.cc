#include "attention/cuda/kernel_variants.h"

namespace coppice::attention::cuda {

// Defined by the instantiation files kernel_<dtype>_d<head_dim>.cu.
extern const KernelVariant kBF16D64, kBF16D128, kF16D64, kF16D128;

const KernelVariant& KernelVariantFor(DType dtype, int head_dim) {
  if (dtype == DType::kBF16) return head_dim <= 64 ? kBF16D64 : kBF16D128;
  return head_dim <= 64 ? kF16D64 : kF16D128;
}

}  // namespace coppice::attention::cuda
