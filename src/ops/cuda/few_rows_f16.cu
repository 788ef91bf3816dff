#include "ops/cuda/few_rows.cuh"

namespace coppice::ops::cuda {

Result<int32_t> PrepareFewRowsF16(int shared_bytes) { return PrepareFewRows<__half>(shared_bytes); }
Status LaunchFewRowsF16(const FewRowsParams& params, int num_ctas, bool overlaps, cudaStream_t stream) {
  return LaunchFewRows<__half>(params, num_ctas, overlaps, stream);
}

}  // namespace coppice::ops::cuda
