// One of the kernels that run plans: how it is launched, and what is said of the plans that it runs. The executor copies plans and
// hands them to the kernel of their LaunchChoice. Layer: attention/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "attention/cuda/bound_kv.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernel_variants.h"
#include "attention/cuda/lower/explain_tasks.h"
#include "attention/cuda/lower/launch_choice.h"

namespace coppice::attention::cuda {

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual Status Launch(const LaunchChoice& choice, const KernelParams& params, const BoundCudaKv& kv,
                        cudaStream_t stream) const = 0;

  // The lowered plan: its tasks, where the kernel runs those.
  virtual std::string Explain(const LaunchChoice&, const LoweredView& lowered) const { return ExplainTasks(lowered); }
  virtual std::string Dump(const LaunchChoice&, const LoweredView& lowered) const { return DumpTasks(lowered); }
  virtual void Count(const LaunchChoice&, const LoweredView& lowered, PlanStats* stats) const { CountCuts(lowered, stats); }
};

// A kernel that runs a plan's tasks with a fixed number of CTAs.
class TaskKernel : public Kernel {
 public:
  // folds: of deterministic mode, KernelVariant::fold_bytes_per_cta of each CTA.
  TaskKernel(const KernelVariant& variant, int num_ctas, float* folds) : variant_(variant), num_ctas_(num_ctas), folds_(folds) {}

 protected:
  const KernelVariant& variant_;
  int num_ctas_;
  float* folds_;
};

// A kernel with more shared memory than every kernel may have.
Status AllowSharedMemory(const KernelVariant& kernel);

}  // namespace coppice::attention::cuda
