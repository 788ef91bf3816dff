// One plan's device side: its images of the plan, its states and tickets, and its launches. Layer: attention/cuda.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernel_variants.h"
#include "attention/cuda/lower/explain_tasks.h"
#include "attention/cuda/lower/plan_translator.h"
#include "attention/cuda/page_rows.h"
#include "attention/cuda/short_decode.h"
#include "attention/cuda/tensor_map.h"

namespace coppice::attention::cuda {

class BoundCudaKv final : public BoundKv {
 public:
  BoundCudaKv(const AttentionSpec& spec, const KvLayerView& view, KernelPath path, const TensorMaps& maps)
      : BoundKv(spec, view), path_(path), maps_(maps) {}
  KernelPath path() const { return path_; }
  const TensorMaps& maps() const { return maps_; }  // of the Hopper path

 private:
  KernelPath path_;
  TensorMaps maps_;
};

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

  CudaPlanExecutor(int device, int num_sms, const KernelVariant& variant, const AttentionSpec& spec, const PlanCapacity& capacity,
                   const PlanSizes& sizes, const MachineModel& machine);
  LoweredView Lowered() const { return {.translator = translator_, .plan = plan_view_, .cost = cost_}; }
  // What device image image_ lacks.
  Status CopyImage(const PrefixForestView& forest, Staging& staging, cudaStream_t stream);
  Status CopyPlan(std::byte* image, cudaStream_t stream);
  Status CopyLengths(const PrefixForestView& forest, std::byte* image, cudaStream_t stream);
  Status CopyPages(const PrefixForestView& forest, std::byte* image, cudaStream_t stream);
  // To image_, from the same place of a staged image.
  Status Copy(const std::byte* image, size_t offset, size_t bytes, cudaStream_t stream);
  KernelParams MakeParams(const KvLayerView& view, const RunArgs& args) const;
  // Which of the two serves the plan last uploaded. Either computes any plan, so that with one image a captured graph may hold
  // either.
  const KernelVariant& Kernel() const { return translator_.header().side != 0 ? side_variant_ : variant_; }
  Status LaunchHopper(KernelParams params, const BoundCudaKv& kv, cudaStream_t stream) const;
  Status LaunchShort(const KernelParams& params, const KvLayerView& view, cudaStream_t stream) const;
  Status LaunchMmaSync(const KernelParams& params, const KvLayerView& view, cudaStream_t stream) const;

  static constexpr int kStagingBuffers = 2;  // uploads in flight

  int device_, num_sms_;
  const KernelVariant& variant_;
  const KernelVariant& side_variant_;                                  // for plans with side tiles; the same where there are none
  const void *short_kernel_ = nullptr, *wide_short_kernel_ = nullptr;  // for short decode steps; null where there is none
  AttentionSpec spec_;
  PlanCapacity capacity_;
  PlanSizes sizes_;
  CostModel cost_;
  PlanTranslator translator_;
  PlanView plan_view_;        // that was uploaded last
  int num_ctas_ = 0;          // of a launch: constant, so that a captured graph serves every plan
  uint32_t spread_step_ = 0;  // of half of them
  std::vector<DeviceBuffer> images_;
  int32_t image_ = 0;  // that was written last
  DeviceBuffer states_, tickets_, counters_, folds_;
  std::array<Staging, kStagingBuffers> staging_;
  int next_staging_ = 0;
  PageRows page_rows_;
  uint64_t revision_ = 0;  // of the plan translated last; 0: unknown
  bool uploaded_ = false;
  int short_cluster_ = 0;  // of the short kernel that serves the plan last uploaded; 0: none
};

}  // namespace coppice::attention::cuda
