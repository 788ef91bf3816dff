#include "ops/cuda/few_rows.cuh"

namespace coppice::ops::cuda {

Result<int32_t> PrepareFewRowsBf16(int shared_bytes) { return PrepareFewRows<__nv_bfloat16>(shared_bytes); }
Status LaunchFewRowsBf16(const FewRowsParams& params, const FewRowsLaunch& launch) {
  return LaunchFewRows<__nv_bfloat16>(params, launch);
}

}  // namespace coppice::ops::cuda
