#include "engine/batch_sampler.h"

namespace coppice {

SampledTokens BatchSampler::Sample(MatrixView<const float> logits, const StepBatch& batch) {
  draws_.clear();
  entry_begin_.assign(1, 0);
  for (const StepBatch::Entry& entry : batch.entries) {  // all draws before any task points at them
    const int32_t births = entry.samples ? entry.sequence->births() : 0;
    for (int32_t i = 0; i < births; ++i) draws_.push_back({.sample = entry.sequence->index + i});
    entry_begin_.push_back(static_cast<int32_t>(draws_.size()));
  }
  samples_.clear();
  scores_.clear();
  for (size_t e = 0; e < batch.entries.size(); ++e) {
    const StepBatch::Entry& entry = batch.entries[e];
    const Sequence& sequence = *entry.sequence;
    RequestState& request = *sequence.request;
    if (!request.prompt_logprobs.empty() && !request.prompt_done) {
      for (int32_t row = 0; row < entry.logit_rows; ++row) {
        const int32_t target = sequence.computed + row + 1;
        if (target == request.prompt_length()) break;
        scores_.push_back({.logits = logits.Row(entry.first_logit_row + row),
                           .token = request.params.prompt_ids[target],
                           .logprob = &request.prompt_logprobs[target]});
      }
    }
    if (!entry.samples) continue;
    const bool may_not_end = static_cast<int32_t>(sequence.generated.size()) < request.params.min_tokens;
    samples_.push_back({.logits = logits.Row(entry.first_logit_row + entry.logit_rows - 1),
                        .params = &request.params.sampling,
                        .position = static_cast<uint32_t>(sequence.length()),
                        .prompt = request.params.prompt_ids,
                        .generated = sequence.generated,
                        .banned = may_not_end ? std::span<const int32_t>(request.end_ids) : std::span<const int32_t>(),
                        .draws = std::span(draws_).subspan(entry_begin_[e], entry_begin_[e + 1] - entry_begin_[e])});
  }
  sampler_.Run(samples_, scores_);
  return {.draws = draws_, .entry_begin = entry_begin_};
}

}  // namespace coppice
