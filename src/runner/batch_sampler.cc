#include "runner/batch_sampler.h"

#include <limits>

#include "core/check.h"

namespace coppice {

void SampledStep::Reset(const StepBatch& batch) {
  draws.clear();
  for (const Draw& draw : batch.draws) draws.push_back({.sample = draw.sample});
  scores.assign(batch.scores.size(), 0.0f);
  top_logprobs.assign(batch.num_top_logprobs, {});
}

std::span<const int32_t> BatchSampler::FindLogitRows(const StepBatch& batch) {
  logit_rows_.clear();
  draw_rows_.clear();
  score_rows_.clear();
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  for (size_t d = 0, s = 0; d < batch.draws.size() || s < batch.scores.size();) {  // two lists in order become one
    const int32_t draw_row = d < batch.draws.size() ? batch.draws[d].row : kNone;
    const int32_t score_row = s < batch.scores.size() ? batch.scores[s].row : kNone;
    const int32_t row = std::min(draw_row, score_row);
    COPPICE_DCHECK(logit_rows_.empty() || logit_rows_.back() <= row);
    if (logit_rows_.empty() || logit_rows_.back() != row) logit_rows_.push_back(row);
    const int32_t place = static_cast<int32_t>(logit_rows_.size()) - 1;
    if (draw_row == row) {
      draw_rows_.push_back(place);
      ++d;
    } else {
      score_rows_.push_back(place);
      ++s;
    }
  }
  return logit_rows_;
}

void BatchSampler::Sample(MatrixView<const float> logits, const StepBatch& batch, const SamplingSlots& slots, SampledStep* step) {
  samples_.clear();
  scores_.clear();
  for (size_t begin = 0, end = 0; begin < batch.draws.size(); begin = end) {
    const Draw& first = batch.draws[begin];
    for (end = begin + 1; end < batch.draws.size(); ++end) {
      const Draw& next = batch.draws[end];
      if (next.row != first.row || next.slot != first.slot || first.drafting >= 0) break;
    }
    samples_.push_back(TaskOf(batch, begin, end, slots, step));
    samples_.back().logits = logits.Row(draw_rows_[begin]);
  }
  for (size_t i = 0; i < batch.scores.size(); ++i) {
    scores_.push_back({.logits = logits.Row(score_rows_[i]), .token = batch.scores[i].token, .logprob = &step->scores[i]});
  }
  sampler_.Run(samples_, scores_);
}

SampleTask BatchSampler::TaskOf(const StepBatch& batch, size_t begin, size_t end, const SamplingSlots& slots, SampledStep* step) {
  const Draw& draw = batch.draws[begin];
  const SamplingSlot& slot = slots[draw.slot];
  SampleTask task{.params = &slot.sampling.params,
                  .position = static_cast<uint32_t>(draw.position),
                  .prompt = slot.prompt.get(),
                  .generated = &slot.generated,
                  .draws = std::span(step->draws).subspan(begin, end - begin),
                  .top_logprobs = std::span(step->top_logprobs).subspan(draw.top_begin, draw.top_logprobs)};
  if (draw.bans_end_ids) task.banned = slot.sampling.end_ids;
  if (draw.mask >= 0) {
    const size_t words = static_cast<size_t>(MaskWords(vocab_size_));
    task.mask = std::span(batch.masks).subspan(draw.mask * words, words);
  }
  if (draw.drafting < 0) return task;
  const Drafting& drafting = batch.drafting[draw.drafting];
  task.drafted = std::span(batch.draft_tokens).subspan(drafting.path_begin, drafting.path_count);
  if (drafting.distribution >= 0) task.distribution = distributions_->Row(drafting.distribution);
  if (drafting.proposal >= 0) task.proposal = distributions_->Row(drafting.proposal);
  task.draft = drafting.token;
  return task;
}

}  // namespace coppice
