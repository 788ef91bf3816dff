// A runner whose steps run on the host, each within Launch: the part that does not depend on what computes the logits. Layer:
// runner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/core/tensor_view.h"
#include "model/transformer.h"
#include "runner/batch_sampler.h"
#include "runner/layer_plans.h"
#include "runner/runner.h"
#include "runner/sampling_slots.h"
#include "runner/step_ring.h"

namespace coppice {

class HostRunner : public Runner {
 public:
  const RunnerInfo& info() const final { return info_; }
  Result<StepTicket> Launch(const StepBatch& batch, const attention::PrefixForestView& forest) final;
  Result<StepResult> Wait(StepTicket ticket) final;
  std::vector<attention::NodeRead> NodeReads() const override { return plans_.NodeReads(); }

 protected:
  struct Parts {
    RunnerInfo info;
    std::vector<LayerPlans::Group> plans;               // at least one
    Stream stream = nullptr;                            // of the plans' device
    Executor* executor = nullptr;                       // outlives the runner
    std::shared_ptr<DraftDistributions> distributions;  // null: no draft model
  };
  explicit HostRunner(Parts parts);

  virtual Status MoveSlots(std::span<const attention::SlotMove> moves) = 0;
  virtual Status CopyPages(std::span<const attention::PageCopy> copies) = 0;
  // One a layer group.
  std::span<attention::AttentionPlan* const> plans() const { return plans_.plans(); }
  // Plans a step. Says in `stats` what attention will read.
  virtual Status Prepare(const attention::PrefixForestView& forest, StepStats* stats) {
    return plans_.Prepare(forest, stream_, stats);
  }
  // Logits [R, vocab] of batch.logit_rows in fp32, valid until the next call. plans() were updated with the step's forest.
  virtual Result<MatrixView<const float>> Forward(const ForwardBatch& batch) = 0;
  // By those whose model is known only when they are made.
  RunnerInfo& mutable_info() { return info_; }

 private:
  void EditSlots(const StepBatch& batch, RingStep* step);
  Status Run(const StepBatch& batch, const attention::PrefixForestView& forest, RingStep* step);

  RunnerInfo info_;
  LayerPlans plans_;
  const Stream stream_;
  BatchSampler sampler_;
  SamplingSlots slots_;
  StepRing<> steps_;
  std::vector<int32_t> token_ids_;
};

}  // namespace coppice
