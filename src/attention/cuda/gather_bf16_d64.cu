// An instance of the attention kernel for small pages: bf16, head_dim up to 64. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kGatherBF16D64 =
    Variant<Config<__nv_bfloat16, 64, /*kDeterministic=*/false, /*kOverlapsDecode=*/false, /*kGathers=*/true>>(DType::kBF16);

}  // namespace coppice::attention::cuda
