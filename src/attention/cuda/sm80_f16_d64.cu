// An instance of the mma.sync kernel: f16, head_dim up to 64. Layer: attention/cuda.
#include "attention/cuda/sm80_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kSm80F16D64 = Sm80Variant<Sm80Config<__half, 64>>(DType::kF16);

}  // namespace coppice::attention::cuda
