#include "ops/cuda/few_rows.cuh"

namespace coppice::ops::cuda {

Result<int32_t> PrepareFewRowsF16(int shared_bytes) { return PrepareFewRows<__half>(shared_bytes); }
Status LaunchFewRowsF16(const FewRowsParams& params, const FewRowsLaunch& launch) { return LaunchFewRows<__half>(params, launch); }

}  // namespace coppice::ops::cuda
