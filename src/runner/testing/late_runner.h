// A runner that does a step's work as late as it may: in Wait, on a copy made at Launch. It spoils arrays that the caller may
// change after Launch, and results that are not valid any more. Its results must be those of the runner that it wraps.
// Layer: runner, tests only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runner/runner.h"
#include "runner/step_ring.h"

namespace coppice {

class LateRunner final : public Runner {
 public:
  explicit LateRunner(std::unique_ptr<Runner> inner) : inner_(std::move(inner)) {}

  const RunnerInfo& info() const override { return inner_->info(); }
  Result<StepTicket> Launch(const StepBatch& batch, const attention::PrefixForestView& forest) override;
  Result<StepResult> Wait(StepTicket ticket) override;
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override {
    return inner_->PrepareUpdate(std::move(tensors));
  }
  Status UpdateWeights(const WeightSource& source) override { return inner_->UpdateWeights(source); }
  bool weights_are_whole() const override { return inner_->weights_are_whole(); }
  void BeginUpdate() override { inner_->BeginUpdate(); }
  void EndUpdate() override { inner_->EndUpdate(); }
  HeldWeights Weights() const override { return inner_->Weights(); }
  Status CheckSleep(bool keep_weights) const override { return inner_->CheckSleep(keep_weights); }
  Status Sleep(bool keep_weights) override { return inner_->Sleep(keep_weights); }
  Status Wake() override { return inner_->Wake(); }

  // The most steps that were under way at the same time.
  size_t most_under_way() const { return most_under_way_; }

 private:
  // The arguments of Launch.
  struct Work {
    StepBatch batch;
    attention::PrefixForestView forest;  // of the arrays below
    std::vector<std::vector<int32_t>> arrays;
    std::vector<uint64_t> tree_mask;
  };
  struct Step : RingStep {
    Work work;  // gone when it was done
  };
  // Does a step's work, and keeps what the other runner gives.
  Status Run(Step* step);

  std::unique_ptr<Runner> inner_;
  StepRing<Step> steps_;
  size_t most_under_way_ = 0;
};

}  // namespace coppice
