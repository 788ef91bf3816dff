// The kernel of mma.sync (sm80_kernel.cuh), for every device since sm_80. Layer: attention/cuda.
#pragma once

#include "attention/cuda/kernels/kernel.h"

namespace coppice::attention::cuda {

class MmaSyncKernel final : public Kernel {
 public:
  // folds: of deterministic mode, KernelVariant::fold_bytes_per_cta of each CTA.
  MmaSyncKernel(const KernelVariant& variant, int num_ctas, float* folds) : variant_(variant), num_ctas_(num_ctas), folds_(folds) {}
  Status Launch(const LaunchChoice& choice, const KernelParams& params, const BoundCudaKv& kv, cudaStream_t stream) const override;

 private:
  const KernelVariant& variant_;
  int num_ctas_;
  float* folds_;
};

}  // namespace coppice::attention::cuda
