// An instance of the attention kernel: f16, head_dim up to 64, concurrent schedule. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kF16D64Concurrent = Variant<Config<__half, 64, kConcurrentKvTile, true>>(DType::kF16);

}  // namespace coppice::attention::cuda
