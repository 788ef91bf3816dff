// An instance of the attention kernel in deterministic mode: f16, head_dim up to 64. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kDeterministicF16D64 = Variant<Config<__half, 64, true>>(DType::kF16);

}  // namespace coppice::attention::cuda
