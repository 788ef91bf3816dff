// An instance of the attention kernel with overlapped tiles: bf16, head_dim up to 128. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kOverlappedBF16D128 =
    Variant<Config<__nv_bfloat16, 128, /*kDeterministic=*/false, /*kOverlapsDecode=*/true>>(DType::kBF16);

}  // namespace coppice::attention::cuda
