#include "runner/device_sampler.h"

#include <algorithm>

namespace coppice {

bool DeviceSampler::Takes(const StepBatch& batch, const SamplingSlots& slots) {
  if (!batch.scores.empty() || batch.num_top_logprobs > 0 || !batch.drafting.empty() || !batch.masks.empty()) return false;
  return std::ranges::all_of(batch.draws, [&](const Draw& draw) {
    const SamplingParams& params = slots[draw.slot].sampling.params;
    return !draw.bans_end_ids && !HasPenalties(params) && params.logit_bias.empty();
  });
}

}  // namespace coppice
