#include "attention/cuda/kernel_variants.h"

#include <bit>
#include <string>

#include "attention/cuda/plan_device.h"
#include "core/check.h"

namespace coppice::attention::cuda {

// Defined by the instantiation files kernel_<dtype>_d<head_dim>.cu and sm80_<dtype>_d<head_dim>.cu.
extern const KernelVariant kBF16D64, kBF16D128, kF16D64, kF16D128;
extern const KernelVariant kSm80BF16D64, kSm80BF16D128, kSm80BF16D256, kSm80F16D64, kSm80F16D128, kSm80F16D256;

namespace {

// What no kernel of this backend does.
Status CheckSpec(const AttentionSpec& spec) {
  if (spec.q_dtype != spec.kv_dtype || SizeOf(spec.q_dtype) != 2) {
    return Unimplemented("attention on CUDA: q is " + std::string(Name(spec.q_dtype)) + " and KV is " +
                         std::string(Name(spec.kv_dtype)) + "; expected both bf16 or both f16");
  }
  if (spec.head_dim % 8 != 0 || spec.head_dim < 8 || spec.head_dim > 256) {
    return Unimplemented("attention on CUDA: head_dim = " + std::to_string(spec.head_dim) + "; expected a multiple of 8 up to 256");
  }
  if (spec.num_kv_heads < 1 || spec.num_qo_heads % spec.num_kv_heads != 0 || spec.group_size() > kDenseRows) {
    return Unimplemented("attention on CUDA: " + std::to_string(spec.num_qo_heads) + " query heads over " +
                         std::to_string(spec.num_kv_heads) + " kv heads; expected at most " + std::to_string(kDenseRows) +
                         " query heads for each kv head");
  }
  if (spec.sm_scale < 0.0f) {
    return Unimplemented("attention on CUDA: sm_scale = " + std::to_string(spec.sm_scale) + "; expected a positive scale");
  }
  return OkStatus();
}

// What the Hopper kernel alone does not do; empty if it does this.
std::string WhyNotHopper(int major, int minor, const AttentionSpec& spec, int32_t page_size) {
  if (major != 9 || minor != 0) {
    return "compute capability " + std::to_string(major) + "." + std::to_string(minor) + "; it needs 9.0";
  }
  if (spec.head_dim > 128) return "head_dim = " + std::to_string(spec.head_dim) + "; it takes up to 128";
  if (page_size < 8 || page_size > 256 || !std::has_single_bit(static_cast<uint32_t>(page_size))) {
    return "page_size = " + std::to_string(page_size) + "; it takes powers of two from 8 to 256";
  }
  if (spec.deterministic) return "deterministic mode";
  return "";
}

}  // namespace

const KernelVariant& HopperVariantFor(DType dtype, int head_dim) {
  if (dtype == DType::kBF16) return head_dim <= 64 ? kBF16D64 : kBF16D128;
  return head_dim <= 64 ? kF16D64 : kF16D128;
}

const KernelVariant& MmaSyncVariantFor(DType dtype, int head_dim) {
  if (dtype == DType::kBF16) return head_dim <= 64 ? kSm80BF16D64 : head_dim <= 128 ? kSm80BF16D128 : kSm80BF16D256;
  return head_dim <= 64 ? kSm80F16D64 : head_dim <= 128 ? kSm80F16D128 : kSm80F16D256;
}

Result<const KernelVariant*> SelectKernel(CudaKernels kernels, int major, int minor, const AttentionSpec& spec, int32_t page_size) {
  COPPICE_RETURN_IF_ERROR(CheckSpec(spec));
  const std::string why_not_hopper = WhyNotHopper(major, minor, spec, page_size);
  if (kernels == CudaKernels::kHopper && !why_not_hopper.empty()) {
    return Unimplemented("attention on CUDA: the Hopper kernel cannot do " + why_not_hopper +
                         "; let the context choose its kernels");
  }
  if (kernels != CudaKernels::kMmaSync && why_not_hopper.empty()) return &HopperVariantFor(spec.q_dtype, spec.head_dim);
  return &MmaSyncVariantFor(spec.q_dtype, spec.head_dim);
}

}  // namespace coppice::attention::cuda
