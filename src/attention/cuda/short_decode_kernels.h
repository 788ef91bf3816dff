// The instances of short_decode.cuh, one small file a dtype, so that they compile in parallel; null where there is none.
// Layer: attention/cuda.
#pragma once

namespace coppice::attention::cuda {

const void* ShortDecodeKernelBf16(int head_dim, int group_size, int cluster);
const void* ShortDecodeKernelF16(int head_dim, int group_size, int cluster);

}  // namespace coppice::attention::cuda
