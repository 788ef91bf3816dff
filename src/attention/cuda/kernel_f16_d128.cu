// An instance of the attention kernel: f16, head_dim up to 128. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kF16D128 = Variant<Config<__half, 128>>(DType::kF16, &kOverlappedF16D128);

}  // namespace coppice::attention::cuda
