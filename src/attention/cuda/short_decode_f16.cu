#include "attention/cuda/short_decode.cuh"
#include "attention/cuda/short_decode_kernels.h"

namespace coppice::attention::cuda {

const void* ShortDecodeKernelF16(int head_dim, int group_size, int cluster) {
  return short_decode::KernelFor<__half>(head_dim, group_size, cluster);
}

}  // namespace coppice::attention::cuda
