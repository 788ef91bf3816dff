// An instance of the mma.sync kernel: bf16, head_dim up to 128. Layer: attention/cuda.
#include "attention/cuda/sm80_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kSm80BF16D128 = Sm80Variant<Sm80Config<__nv_bfloat16, 128>>(DType::kBF16);

}  // namespace coppice::attention::cuda
