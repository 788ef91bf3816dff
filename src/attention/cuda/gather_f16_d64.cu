// An instance of the attention kernel for small pages: f16, head_dim up to 64. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kGatherF16D64 =
    Variant<Config<__half, 64, /*kDeterministic=*/false, /*kOverlapsDecode=*/false, /*kGathers=*/true>>(DType::kF16);

}  // namespace coppice::attention::cuda
