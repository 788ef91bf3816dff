#include "attention/cuda/short_decode.cuh"
#include "attention/cuda/short_decode_kernels.h"

namespace coppice::attention::cuda {

const void* ShortDecodeKernelBf16(int head_dim, int group_size, int cluster) {
  return short_decode::KernelFor<__nv_bfloat16>(head_dim, group_size, cluster);
}

}  // namespace coppice::attention::cuda
