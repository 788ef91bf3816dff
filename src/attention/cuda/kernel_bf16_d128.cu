// An instance of the attention kernel: bf16, head_dim up to 128. Layer: attention/cuda.
#include "attention/cuda/kernel_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kBF16D128 = Variant<Config<__nv_bfloat16, 128>>(DType::kBF16, &kOverlappedBF16D128);

}  // namespace coppice::attention::cuda
