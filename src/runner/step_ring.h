// The steps of a runner: which are under way, which is the oldest, what the step before one drew, and results that outlive the
// steps after them. Knows nothing of how a step is computed. Layer: runner.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coppice/core/status.h"
#include "core/check.h"
#include "runner/batch_sampler.h"
#include "runner/runner.h"

namespace coppice {

// State that every runner keeps of a step that is under way, or was waited for last. A runner adds members of its own.
struct RingStep {
  int64_t number = 0;  // StepTicket::step
  Status status;       // for Wait to return; OK once it did
  SampledStep sampled;
  StepStats stats;
};

// The return value of Wait for a step that is done: its result, or its error, once.
Result<StepResult> ResultOf(RingStep* step);
// The tokens of the batch's rows. Those that are draws of the step `before` are 0 where there is none, or the host has none yet.
void FillTokens(const StepBatch& batch, const RingStep& before, std::vector<int32_t>* token_ids);

// Calls of a runner in their order: Prepare and Enter in Launch, Take in Wait. Thread-compatible.
template <std::derived_from<RingStep> Step = RingStep>
class StepRing {
 public:
  // All there are, for what a runner makes once.
  std::span<Step> steps() { return steps_; }
  // Without a step under way, number 0: a step that gave nothing.
  Step& At(int64_t number) { return steps_[static_cast<size_t>(number) % kNumSteps]; }
  Step& Before(const Step& step) { return At(step.number - 1); }

  // The next step, with nothing in it but the batch's draws, which have no token. It is under way from Enter on.
  // REQUIRES: at most one step is under way.
  Step& Prepare(const StepBatch& batch) {
    COPPICE_CHECK(num_under_way() < kMaxUnderWay);
    Step& step = At(launched_ + 1);
    step.number = launched_ + 1;
    step.stats = {};
    step.sampled.Reset(batch);
    return step;
  }
  StepTicket Enter(const Step& step) {
    COPPICE_DCHECK(step.number == launched_ + 1);
    return {++launched_};
  }
  // The oldest step under way, which is so no longer. REQUIRES: `ticket` is its.
  Step& Take(StepTicket ticket) {
    COPPICE_CHECK(ticket.step == ++waited_ && waited_ <= launched_);
    return At(ticket.step);
  }

  size_t num_under_way() const { return static_cast<size_t>(launched_ - waited_); }
  // The step before this one failed, and its caller does not know yet.
  bool StandsOnFailure(const Step& step) {
    const Step& before = Before(step);
    return before.number > waited_ && !before.status.ok();
  }

 private:
  static constexpr size_t kMaxUnderWay = 2;
  static constexpr size_t kNumSteps = kMaxUnderWay + 1;  // a result outlives the launch of the step after the next

  std::array<Step, kNumSteps> steps_;
  int64_t launched_ = 0, waited_ = 0;
};

}  // namespace coppice
