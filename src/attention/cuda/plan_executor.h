// One plan's device side: its images of the plan, its states and tickets. Copies what the device lacks; which kernel runs says
// ChooseLaunch, and that kernel launches itself (kernels/). Layer: attention/cuda.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "attention/cuda/bound_kv.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernel_variants.h"
#include "attention/cuda/kernels/kernel.h"
#include "attention/cuda/kernels/short_decode.h"
#include "attention/cuda/lower/launch_choice.h"
#include "attention/cuda/lower/plan_translator.h"
#include "attention/cuda/page_rows.h"

namespace coppice::attention::cuda {

// The device bytes that a plan needs beside its image: states, tickets, counters and what deterministic mode keeps per CTA.
struct WorkspaceLayout {
  WorkspaceLayout(const KernelVariant& variant, const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes,
                  const PlanLayout& plan, int num_sms);
  size_t states, tickets, counters, folds;
  size_t bytes() const { return states + tickets + counters + folds; }
};

class CudaPlanExecutor final : public PlanExecutor {
 public:
  static Result<std::unique_ptr<PlanExecutor>> Create(int device, int num_sms, const KernelVariant& variant,
                                                      const AttentionSpec& spec, const PlanCapacity& capacity,
                                                      const PlanSizes& sizes, const MachineModel& machine);
  // Copies lengths and what the device image lacks of page entries and of the plan, from page-locked memory. Of several images the
  // next one is written.
  Status Upload(const PlanView& plan, const PrefixForestView& forest, Stream stream) override;
  Status Run(const BoundKv& kv, const RunArgs& args, Stream stream) override;
  LaunchKey launch_key() const override;
  void LowerAtRandom(uint64_t seed) override { translator_.LowerAtRandom(seed); }
  // Of the plan last uploaded. REQUIRES: no Update of it since.
  void CountCuts(PlanStats* stats) const override;
  std::string Explain() const override;
  std::string DumpTasks() const override;

 private:
  // Where an upload is put together: an image, then page patches.
  struct Staging {
    PinnedBuffer memory;
    CudaEvent copied;
  };

  CudaPlanExecutor(int device, const KernelVariant& variant, const BackendTraits& traits, const AttentionSpec& spec,
                   const PlanCapacity& capacity, const PlanSizes& sizes, const MachineModel& machine);
  LoweredView Lowered() const { return {.translator = translator_, .plan = plan_view_, .cost = cost_}; }
  // The parts that device image image_ lacks.
  Status CopyImage(const PrefixForestView& forest, Staging& staging, cudaStream_t stream);
  Status CopyPlan(std::byte* image, cudaStream_t stream);
  Status CopyLengths(const PrefixForestView& forest, std::byte* image, cudaStream_t stream);
  Status CopyPages(const PrefixForestView& forest, std::byte* image, cudaStream_t stream);
  // To image_, from the same place of a staged image.
  Status Copy(const std::byte* image, size_t offset, size_t bytes, cudaStream_t stream);
  KernelParams MakeParams(const KvLayerView& view, const RunArgs& args) const;
  Status MakeKernels(int num_sms, const ShortDecodeFunctions& short_decode, const ShortDecodeRates& rates);
  // That runs the plan last uploaded.
  const Kernel& kernel() const { return *kernels_[static_cast<size_t>(choice_.kernel)]; }

  static constexpr int kStagingBuffers = 2;  // uploads in flight

  // Beside the images: what launches write.
  struct Workspace {
    DeviceBuffer states, tickets, counters, folds;
  };

  int device_;
  const KernelVariant& variant_;
  BackendTraits traits_;
  AttentionSpec spec_;
  PlanCapacity capacity_;
  CostModel cost_;
  PlanTranslator translator_;
  PlanView plan_view_;        // that was uploaded last
  uint32_t spread_step_ = 0;  // of half of a launch's CTAs
  std::vector<DeviceBuffer> images_;
  int32_t image_ = 0;  // that was written last
  Workspace workspace_;
  std::array<std::unique_ptr<Kernel>, kNumKernels> kernels_;  // by KernelId; null: never chosen
  std::array<Staging, kStagingBuffers> staging_;
  int next_staging_ = 0;
  PageRows page_rows_;
  uint64_t revision_ = 0;  // of the plan translated last; 0: unknown
  bool uploaded_ = false;
  LaunchChoice choice_;  // of the plan last uploaded
};

}  // namespace coppice::attention::cuda
