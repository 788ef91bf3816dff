// The runner of a model on a GPU: a step is put into a stream, from edits to draws, and nothing of it comes back but tokens and
// what is said of them. Plans are uploaded beside the step before. Steps are filled up to shapes that come again, and run as
// captured graphs when they do (step_graphs.h). Layer: runner.
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
#include "runner/plan_uploads.h"
#include "runner/runner.h"
#include "runner/step_graphs.h"
#include "runner/step_ring.h"

namespace coppice {

class DeviceRunner final : public Runner {
 public:
  struct Limits {
    int32_t max_rows = 0, max_draws = 0;  // of a step
    int32_t max_logit_rows = 0;           // that the transformer gives at a time
    int32_t max_graphs = 0;               // captured steps that are kept; 0: none
  };
  static Result<std::unique_ptr<DeviceRunner>> Create(ModelParts parts, const Limits& limits);
  ~DeviceRunner() override;

  // Measures with which products steps of up to max_rows rows are fastest (Ops::Tune). REQUIRES: no step was launched.
  Status Tune();

  const RunnerInfo& info() const override { return info_; }
  Result<StepTicket> Launch(const StepBatch& batch, const attention::PrefixForestView& forest) override;
  Result<StepResult> Wait(StepTicket ticket) override;
  std::vector<attention::NodeRead> NodeReads() const override { return plans_.NodeReads(); }
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override;
  Status UpdateWeights(const WeightSource& source) override;
  bool weights_are_whole() const override { return transformer_->weights_are_whole(); }
  Status CheckSleep(bool keep_weights) const override { return CheckSleepOn(*device_, *transformer_, keep_weights); }
  Status Sleep(bool keep_weights) override;
  Status Wake() override { return WakeOn(*device_); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Step : RingStep {
    bool computes = false;    // has rows, and its work is in the stream
    bool draws_come = false;  // they are on the device
    Clock::time_point launched, done;
    std::unique_ptr<Event> begun, ended;  // the forward pass, draws included
  };
  // The host's arrays of a step's rows, filled up to `shape`.
  struct Rows {
    std::vector<int32_t> token_ids, positions, logit_rows;
    std::vector<int64_t> slot_mapping;
    StepShape shape;
  };

  DeviceRunner(ModelParts parts, const Limits& limits);
  Status Begin(const StepBatch& batch, const attention::PrefixForestView& forest, Step* step);
  // Waits for the draws of a step and what else it says.
  Status Complete(Step* step);
  void FillRows(const StepBatch& batch, const Step& before);
  Status Run(const StepBatch& batch, const DeviceBatch& rows, Step* step);
  // From rows to draws and scores, as a graph where there is one or is to be.
  Status ForwardAndSample(const DeviceBatch& rows, bool has_scores, StepStats* stats);
  // Gives the logits of the last rows that there was room for at a time.
  Result<ConstDeviceTensor> Compute(const DeviceBatch& rows, bool scores);
  Status Capture(const DeviceBatch& rows, StepGraphs::Captured* captured);

  RunnerInfo info_;
  const Limits limits_;
  std::unique_ptr<Device> device_;  // before what stands on it
  std::unique_ptr<OwnedStream> stream_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<DeviceSampler> sampler_;
  LayerPlans plans_;
  std::unique_ptr<PlanUploads> uploads_;
  LogitRows logit_rows_;
  Rows rows_;
  StepGraphs graphs_;
  StepRing<Step> steps_;
};

}  // namespace coppice
