// The kernel of mma.sync (sm80_kernel.cuh), for every device since sm_80. Layer: attention/cuda.
#pragma once

#include "attention/cuda/kernels/kernel.h"

namespace coppice::attention::cuda {

class MmaSyncKernel final : public TaskKernel {
 public:
  using TaskKernel::TaskKernel;
  Status Launch(const LaunchChoice& choice, const KernelParams& params, const BoundCudaKv& kv, cudaStream_t stream) const override;
};

}  // namespace coppice::attention::cuda
