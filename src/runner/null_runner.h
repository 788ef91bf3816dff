// A runner without a model: draws at once, tokens that depend on the sample and the position alone. For measuring everything around
// a model.
// Layer: runner.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "runner/runner.h"
#include "runner/step_ring.h"

namespace coppice {

class NullRunner final : public Runner {
 public:
  // Draws `ordinary` tokens, such as those that are text; empty: any of the vocabulary. Where a mask allows others alone, one of
  // those. Wait sleeps until a step is `step_time` old.
  explicit NullRunner(RunnerInfo info, std::vector<int32_t> ordinary = {}, std::chrono::nanoseconds step_time = {})
      : info_(std::move(info)), ordinary_(std::move(ordinary)), step_time_(step_time) {}

  const RunnerInfo& info() const override { return info_; }
  Result<StepTicket> Launch(const StepBatch& batch, const attention::PrefixForestView& forest) override;
  Result<StepResult> Wait(StepTicket ticket) override;
  Status ReadKv(std::span<const int32_t>, int32_t, std::span<std::byte>) const override { return OkStatus(); }
  Status WriteKv(std::span<const int32_t>, int32_t, int32_t, std::span<const std::byte>) override { return OkStatus(); }

 private:
  RunnerInfo info_;
  std::vector<int32_t> ordinary_;
  std::chrono::nanoseconds step_time_;
  std::chrono::steady_clock::time_point launched_at_;  // the last step
  StepRing<> steps_;
};

}  // namespace coppice
