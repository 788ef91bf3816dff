#include "runner/batch_sampler.h"

#include <algorithm>

namespace coppice {

void SampledStep::Reset(const StepBatch& batch) {
  draws.clear();
  for (const Draw& draw : batch.draws) draws.push_back({.sample = draw.sample});
  scores.assign(batch.scores.size(), 0.0f);
  score_ranks.assign(batch.scores.size(), 0);
  top_logprobs.assign(batch.num_top_logprobs, {});
  selected.assign(batch.num_selected, {});
}

std::span<const int32_t> BatchSampler::FindLogitRows(const StepBatch& batch) {
  rows_.Find(batch);
  return rows_.rows();
}

void BatchSampler::Sample(MatrixView<const float> logits, const StepBatch& batch, const SamplingSlots& slots, SampledStep* step) {
  samples_.clear();
  scores_.clear();
  for (size_t begin = 0, end = 0; begin < batch.draws.size(); begin = end) {
    const Draw& first = batch.draws[begin];
    if (first.beam >= 0) {
      end = begin + 1;
      continue;
    }
    for (end = begin + 1; end < batch.draws.size(); ++end) {
      const Draw& next = batch.draws[end];
      if (next.row != first.row || next.slot != first.slot || first.drafting >= 0) break;
    }
    samples_.push_back(TaskOf(batch, begin, end, slots, step));
    samples_.back().logits = logits.Row(rows_.of_draws()[begin]);
  }
  for (size_t begin = 0, end = 0; begin < batch.scores.size(); begin = end) {
    const Score& first = batch.scores[begin];
    for (end = begin + 1; end < batch.scores.size() && batch.scores[end].row == first.row;) ++end;
    scores_.push_back({.logits = logits.Row(rows_.of_scores()[begin]),
                       .scores = std::span(batch.scores).subspan(begin, end - begin),
                       .logprobs = std::span(step->scores).subspan(begin, end - begin),
                       .ranks = std::span(step->score_ranks).subspan(begin, end - begin),
                       .top_logprobs = std::span(step->top_logprobs).subspan(first.top_begin, first.top_logprobs)});
  }
  AddBeams(logits, batch, slots, step);
  sampler_.Run(samples_, scores_, beams_);
  Select(batch, step);
}

void BatchSampler::AddBeams(MatrixView<const float> logits, const StepBatch& batch, const SamplingSlots& slots, SampledStep* step) {
  beams_.clear();
  size_t num_continuations = 0;
  for (const Selection& selection : batch.selections)
    num_continuations += static_cast<size_t>(selection.beam_count) * selection.wanted_of_beam;
  continuations_.assign(num_continuations, {});
  size_t begin = 0;
  for (const Selection& selection : batch.selections) {
    for (int32_t b = selection.beam_begin; b < selection.beam_begin + selection.beam_count; ++b) {
      const Beam& beam = batch.beams[b];
      const Draw& draw = batch.draws[beam.draw];
      const SlotSampling& sampling = slots[draw.slot].sampling;
      const auto best = std::span(continuations_).subspan(begin, static_cast<size_t>(selection.wanted_of_beam));
      begin += best.size();
      beams_.push_back({.logits = logits.Row(rows_.of_draws()[beam.draw]),
                        .params = &sampling.params,
                        .position = static_cast<uint32_t>(draw.position),
                        .banned = draw.bans_end_ids ? std::span<const int32_t>(sampling.end_ids) : std::span<const int32_t>(),
                        .index = b,
                        .beam = beam,
                        .stochastic = selection.stochastic,
                        .draw = &step->draws[beam.draw],
                        .best = best});
    }
  }
}

void BatchSampler::Select(const StepBatch& batch, SampledStep* step) {
  const auto before = [](const SelectedToken& a, const SelectedToken& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  };
  size_t begin = 0;
  for (const Selection& selection : batch.selections) {
    const auto all = std::span(continuations_).subspan(begin, static_cast<size_t>(selection.beam_count) * selection.wanted_of_beam);
    begin += all.size();
    const auto end = std::partition(all.begin(), all.end(), [](const SelectedToken& one) { return one.beam >= 0; });
    const auto count = std::min<std::ptrdiff_t>(selection.wanted, end - all.begin());
    std::partial_sort(all.begin(), all.begin() + count, end, before);
    std::copy(all.begin(), all.begin() + count, step->selected.begin() + selection.selected_begin);
  }
}

SampleTask BatchSampler::TaskOf(const StepBatch& batch, size_t begin, size_t end, const SamplingSlots& slots, SampledStep* step) {
  const Draw& draw = batch.draws[begin];
  const SamplingSlot& slot = slots[draw.slot];
  SampleTask task{.params = &slot.sampling.params,
                  .position = static_cast<uint32_t>(draw.position),
                  .prompt = slot.prompt.get(),
                  .generated = &slot.generated,
                  .draws = std::span(step->draws).subspan(begin, end - begin),
                  .wants_rank = draw.wants_rank,
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
