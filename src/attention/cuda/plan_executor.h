// One plan's device side: its copy of the plan, its states and tickets, and its launches. Layer: attention/cuda.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernel_variants.h"
#include "attention/cuda/lower/plan_translator.h"
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
                                                      const PlanSizes& sizes, const SmRates& rates);
  // Copies the parts of the plan, lengths and page rows that differ from what the device has, from page-locked memory.
  Status Upload(const PlanView& plan, const PrefixForestView& forest, Stream stream) override;
  Status Run(const BoundKv& kv, const RunArgs& args, Stream stream) override;

 private:
  struct Staging {
    PinnedBuffer memory;
    CudaEvent copied;
  };

  CudaPlanExecutor(int device, int num_sms, const KernelVariant& variant, const AttentionSpec& spec, const PlanCapacity& capacity,
                   const PlanSizes& sizes, const SmRates& rates);
  bool SamePlan(const PlanView& plan, uint64_t version) const;
  void RememberPlan(const PlanView& plan, uint64_t version);
  // Brings what is wanted at this offset of the image to shadow_ and marks the blocks that change.
  void Compare(size_t offset, std::span<const std::byte> wanted);
  void ComparePages(const PrefixForestView& forest, bool all);
  Status CopyChanged(cudaStream_t stream);
  KernelParams MakeParams(const KvLayerView& view, const RunArgs& args) const;
  Status LaunchHopper(KernelParams params, const TensorMaps& maps, cudaStream_t stream) const;
  Status LaunchMmaSync(const KernelParams& params, const KvLayerView& view, cudaStream_t stream) const;

  static constexpr size_t kBlockBytes = 4096;  // granularity of copies
  static constexpr int kStagingBuffers = 2;    // uploads in flight

  int device_, num_sms_;
  const KernelVariant& variant_;
  AttentionSpec spec_;
  PlanCapacity capacity_;
  PlanSizes sizes_;
  PlanTranslator translator_;
  int num_ctas_ = 0;          // of a launch: constant, so that a captured graph serves every plan
  uint32_t spread_step_ = 0;  // of half of them
  DeviceBuffer plan_, states_, tickets_, counters_, folds_;
  std::array<Staging, kStagingBuffers> staging_;
  int next_staging_ = 0;
  std::vector<std::byte> next_, shadow_;  // the image to be but for page indices, the image that the device has
  std::vector<uint8_t> changed_;          // by block
  std::vector<int32_t> last_kv_len_;

  std::vector<WorkItem> items_;  // the plan last translated
  std::vector<int32_t> members_, compute_queue_, bandwidth_queue_;
  std::vector<MergeSet> merge_sets_;
  std::vector<Contribution> contributions_;
  uint64_t version_ = 0;
  bool uploaded_ = false;
};

}  // namespace coppice::attention::cuda
