#include "ops/cuda/gated_product.cuh"

namespace coppice::ops::cuda::gated {

Result<int32_t> PrepareBf16() { return Prepare<__nv_bfloat16>(); }
Status LaunchBf16(const Params& params, int x_rows, cudaStream_t stream) {
  return LaunchTiles<__nv_bfloat16>(params, x_rows, stream);
}

}  // namespace coppice::ops::cuda::gated
