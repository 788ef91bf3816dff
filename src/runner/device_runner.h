// The runner of a model on a GPU, or on one for each of its ranks: a step is put into their streams, from edits to draws, and
// nothing of it comes back but tokens and what is said of them. Plans are uploaded beside the step before. Steps are filled up to
// shapes that come again, and run as captured graphs when they do (step_graphs.h). Layer: runner.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "model/step_inputs.h"
#include "model/transformer.h"
#include "runner/device_sampler.h"
#include "runner/kv_pool.h"
#include "runner/layer_plans.h"
#include "runner/logit_rows.h"
#include "runner/model_parts.h"
#include "runner/phase_timer.h"
#include "runner/plan_uploads.h"
#include "runner/rank_group.h"
#include "runner/runner.h"
#include "runner/step_graphs.h"
#include "runner/step_ring.h"

namespace coppice {

// All ranks make the step's edits and plan it on their own threads; once all have, each launches. The first one draws. A rank that
// fails ends the step on all.
class DeviceRunner final : public Runner {
 public:
  struct Limits {
    int32_t max_rows = 0, max_draws = 0;  // of a step
    int32_t max_logit_rows = 0;           // that the transformer gives at a time
    int32_t max_graphs = 0;               // captured steps that are kept; 0: none
  };
  // `ranks`: parts of each rank, whose transformers were made with the communicators of `group`. The first one's sampler and
  // fingerprint count.
  static Result<std::unique_ptr<DeviceRunner>> Create(std::vector<ModelParts> ranks, std::unique_ptr<RankGroup> group,
                                                      const Limits& limits);
  ~DeviceRunner() override;

  // Measures with which products steps of up to max_rows rows are fastest (Ops::Tune). REQUIRES: no step was launched.
  Status Tune();

  const RunnerInfo& info() const override { return info_; }
  Result<StepTicket> Launch(const StepBatch& batch, const attention::PrefixForestView& forest) override;
  Result<StepResult> Wait(StepTicket ticket) override;
  std::vector<attention::NodeRead> NodeReads() const override {
    const Rank& first = ranks_.front();
    return KnowsSharing(first.stripes.get()) ? first.plans.NodeReads() : std::vector<attention::NodeRead>();
  }
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override;
  Status UpdateWeights(const WeightSource& source) override;
  bool weights_are_whole() const override;
  void BeginUpdate() override;
  void EndUpdate() override;
  HeldWeights Weights() const override;
  Status CheckSleep(bool keep_weights) const override;
  Status Sleep(bool keep_weights) override;
  Status Wake() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Step : RingStep {
    bool computes = false;    // has rows, and its work is in the streams
    bool draws_come = false;  // they are on the device
    Clock::time_point launched, done;
    std::unique_ptr<Event> begun, ended;  // the first rank's forward pass, draws included
  };
  // The host's arrays of a step's rows, filled up to `shape`.
  struct Rows {
    std::vector<int32_t> token_ids, positions, logit_rows;
    std::vector<int64_t> slot_mapping;
    StepShape shape;
  };

  struct Rank {
    explicit Rank(ModelParts parts, const Limits& limits);

    std::unique_ptr<Device> device;  // before what stands on it
    std::unique_ptr<OwnedStream> stream;
    std::unique_ptr<Transformer> transformer;
    std::unique_ptr<KvPool> pool;
    std::unique_ptr<StepInputs> inputs;
    std::unique_ptr<StripedForest> stripes;  // null: it has all tokens of its KV heads
    LayerPlans plans;
    StepStats stats;  // of the step under way, but of the first rank
    std::unique_ptr<PlanUploads> uploads;
    StepGraphs graphs;
  };

  DeviceRunner(std::vector<ModelParts> parts, std::unique_ptr<RankGroup> group, const Limits& limits);
  Status Begin(const StepBatch& batch, const attention::PrefixForestView& forest, Step* step);
  // Waits for the draws of a step and what else it says.
  Status Complete(Step* step);
  void FillRows(const StepBatch& batch, const Step& before);
  Status SynchronizeAll() const;
  // Of rank r, on its thread:
  Status Edit(const StepBatch& batch, int r);
  // Plans a step and puts its rows into device memory.
  Result<DeviceBatch> Prepare(const StepBatch& batch, const attention::PrefixForestView& forest, int r, StepStats* stats,
                              PhaseTimer* phase);
  Status TakeDrawn(const StepBatch& batch, const DeviceBatch& rows, const Step& step, int r);
  Status Run(const StepBatch& batch, const DeviceBatch& rows, const Step& step, int r, StepStats* stats);
  // From rows to draws and scores, as a graph where there is one or is to be.
  Status ForwardAndSample(const DeviceBatch& rows, bool has_scores, int r, StepStats* stats);
  // Gives the logits of the last rows that there was room for at a time.
  Result<ConstDeviceTensor> Compute(const DeviceBatch& rows, bool scores, int r);
  Status Capture(const DeviceBatch& rows, int r, StepGraphs::Captured* captured);

  RunnerInfo info_;
  const Limits limits_;
  std::unique_ptr<RankGroup> group_;  // before the transformers that it connects
  std::vector<Rank> ranks_;
  ReadsOfRanks reads_;                      // where ranks divide tokens
  std::unique_ptr<DeviceSampler> sampler_;  // of the first rank
  LogitRows logit_rows_;
  Rows rows_;
  StepRing<Step> steps_;
};

}  // namespace coppice
