#include "ops/cuda/few_rows.cuh"

namespace coppice::ops::cuda {

Result<int32_t> PrepareFewRowsBf16(int shared_bytes) { return PrepareFewRows<__nv_bfloat16>(shared_bytes); }
Status LaunchFewRowsBf16(const FewRowsParams& params, int num_ctas, bool overlaps, cudaStream_t stream) {
  return LaunchFewRows<__nv_bfloat16>(params, num_ctas, overlaps, stream);
}

}  // namespace coppice::ops::cuda
