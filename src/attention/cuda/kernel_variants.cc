#include "attention/cuda/kernel_variants.h"

#include "core/check.h"

namespace coppice::attention::cuda {

// Defined by the instantiation files {kernel,gather,deterministic,sm80}_<dtype>_d<head_dim>.cu.
extern const KernelVariant kBF16D64, kBF16D128, kF16D64, kF16D128;
extern const KernelVariant kGatherBF16D64, kGatherBF16D128, kGatherF16D64, kGatherF16D128;
extern const KernelVariant kDeterministicBF16D64, kDeterministicBF16D128, kDeterministicF16D64, kDeterministicF16D128;
extern const KernelVariant kSm80BF16D64, kSm80BF16D128, kSm80BF16D256, kSm80F16D64, kSm80F16D128, kSm80F16D256;

const KernelVariant& HopperVariantFor(DType dtype, int head_dim, bool deterministic, bool gathers) {
  if (deterministic) {
    if (dtype == DType::kBF16) return head_dim <= 64 ? kDeterministicBF16D64 : kDeterministicBF16D128;
    return head_dim <= 64 ? kDeterministicF16D64 : kDeterministicF16D128;
  }
  if (gathers) {
    if (dtype == DType::kBF16) return head_dim <= 64 ? kGatherBF16D64 : kGatherBF16D128;
    return head_dim <= 64 ? kGatherF16D64 : kGatherF16D128;
  }
  if (dtype == DType::kBF16) return head_dim <= 64 ? kBF16D64 : kBF16D128;
  return head_dim <= 64 ? kF16D64 : kF16D128;
}

const KernelVariant& MmaSyncVariantFor(DType dtype, int head_dim) {
  if (dtype == DType::kBF16) return head_dim <= 64 ? kSm80BF16D64 : head_dim <= 128 ? kSm80BF16D128 : kSm80BF16D256;
  return head_dim <= 64 ? kSm80F16D64 : head_dim <= 128 ? kSm80F16D128 : kSm80F16D256;
}

Result<const KernelVariant*> SelectKernel(CudaKernels kernels, int major, int minor, const AttentionSpec& spec, int32_t page_size) {
  COPPICE_ASSIGN_OR_RETURN(const KernelChoice choice, ChooseKernel(kernels, major, minor, spec, page_size));
  return choice.path == KernelPath::kHopper ? &HopperVariantFor(spec.q_dtype, spec.head_dim, spec.deterministic, choice.gathers)
                                            : &MmaSyncVariantFor(spec.q_dtype, spec.head_dim);
}

}  // namespace coppice::attention::cuda
