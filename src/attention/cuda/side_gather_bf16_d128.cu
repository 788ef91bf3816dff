// An instance of the attention kernel with side tiles for small pages: bf16, head_dim up to 128. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kSideGatherBF16D128 =
    Variant<Config<__nv_bfloat16, 128, /*kDeterministic=*/false, /*kSide=*/true, /*kGathers=*/true>>(DType::kBF16);

}  // namespace coppice::attention::cuda
