#include "ops/cuda/gated_product.cuh"

namespace coppice::ops::cuda::gated {

Result<int32_t> PrepareF16() { return Prepare<__half>(); }
Status LaunchF16(const Params& params, int x_rows, cudaStream_t stream) { return LaunchTiles<__half>(params, x_rows, stream); }

}  // namespace coppice::ops::cuda::gated
