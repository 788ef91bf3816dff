#include "runner/null_runner.h"

#include <thread>

namespace coppice {
namespace {

// The first token from `wanted` on, and round, that a mask of the batch allows.
int32_t FirstAllowed(const StepBatch& batch, int32_t mask, uint32_t wanted, uint32_t vocab) {
  if (mask < 0) return static_cast<int32_t>(wanted);
  const uint32_t* const words = batch.masks.data() + size_t{static_cast<uint32_t>(mask)} * MaskWords(static_cast<int32_t>(vocab));
  for (uint32_t i = 0; i < vocab; ++i) {
    const uint32_t token = (wanted + i) % vocab;
    if ((words[token / 32] >> token % 32 & 1) != 0) return static_cast<int32_t>(token);
  }
  return kNothingAllowed;
}

}  // namespace

Result<StepTicket> NullRunner::Launch(const StepBatch& batch, const attention::PrefixForestView&) {
  if (step_time_.count() > 0) launched_at_ = std::chrono::steady_clock::now();
  RingStep& step = steps_.Prepare(batch);
  const uint32_t vocab = static_cast<uint32_t>(info_.model.vocab_size);
  for (size_t i = 0; i < batch.draws.size(); ++i) {  // samples go different ways
    const uint32_t mixed = (static_cast<uint32_t>(batch.draws[i].position) * 0x9e3779b1u) ^ (batch.draws[i].sample * 0x85ebca6bu);
    const uint32_t drawn = mixed >> 8;
    const uint32_t wanted = ordinary_.empty() ? drawn % vocab : static_cast<uint32_t>(ordinary_[drawn % ordinary_.size()]);
    step.sampled.draws[i].token = FirstAllowed(batch, batch.draws[i].mask, wanted, vocab);
  }
  for (const Selection& selection : batch.selections) {  // beams in turn, so that half of them part
    for (int32_t i = 0; i < selection.wanted; ++i) {
      const int32_t beam = selection.beam_begin + (i / 2) % selection.beam_count;
      const Beam& from = batch.beams[beam];
      const int32_t token = static_cast<int32_t>((static_cast<uint32_t>(step.sampled.draws[from.draw].token) + i) % vocab);
      step.sampled.selected[selection.selected_begin + i] = {
          .beam = beam, .token = token, .logprob = -1, .score = from.score - 1 - static_cast<float>(i) / 1024};
    }
  }
  return steps_.Enter(step);
}

Result<StepResult> NullRunner::Wait(StepTicket ticket) {
  if (step_time_.count() > 0) std::this_thread::sleep_until(launched_at_ + step_time_);
  return ResultOf(&steps_.Take(ticket));
}

}  // namespace coppice
