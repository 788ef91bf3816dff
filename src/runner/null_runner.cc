#include "runner/null_runner.h"

#include <algorithm>

namespace coppice {

Result<StepTicket> NullRunner::Launch(const StepBatch& batch, const attention::PrefixForestView&) {
  SampledStep& step = steps_[++launched_ % steps_.size()];
  step.Reset(batch);
  const uint32_t vocab = static_cast<uint32_t>(info_.model.vocab_size);
  for (size_t i = 0; i < batch.draws.size(); ++i) {  // samples go different ways
    const uint32_t mixed = (static_cast<uint32_t>(batch.draws[i].position) * 0x9e3779b1u) ^ (batch.draws[i].sample * 0x85ebca6bu);
    step.draws[i].token = static_cast<int32_t>((mixed >> 8) % vocab);
  }
  return StepTicket{launched_};
}

Result<StepResult> NullRunner::Wait(StepTicket ticket) {
  const SampledStep& step = steps_[ticket.step % static_cast<int64_t>(steps_.size())];
  return StepResult{.draws = step.draws, .scores = step.scores, .top_logprobs = step.top_logprobs};
}

}  // namespace coppice
