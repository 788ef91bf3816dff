// The persistent kernel of Hopper (attention_kernel.cuh), in any of its variants. Layer: attention/cuda.
#pragma once

#include "attention/cuda/kernels/kernel.h"

namespace coppice::attention::cuda {

class HopperKernel final : public TaskKernel {
 public:
  using TaskKernel::TaskKernel;
  Status Launch(const LaunchChoice& choice, const KernelParams& params, const BoundCudaKv& kv, cudaStream_t stream) const override;
};

}  // namespace coppice::attention::cuda
