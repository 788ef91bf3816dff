// An instance of the mma.sync kernel: f16, head_dim up to 256. Layer: attention/cuda.
#include "attention/cuda/sm80_instance.cuh"

namespace coppice::attention::cuda {

const KernelVariant kSm80F16D256 = Sm80Variant<Sm80Config<__half, 256>>(DType::kF16);

}  // namespace coppice::attention::cuda
