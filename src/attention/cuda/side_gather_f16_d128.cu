// An instance of the attention kernel with side tiles for small pages: f16, head_dim up to 128. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kSideGatherF16D128 =
    Variant<Config<__half, 128, /*kDeterministic=*/false, /*kSide=*/true, /*kGathers=*/true>>(DType::kF16);

}  // namespace coppice::attention::cuda
