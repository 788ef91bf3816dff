#include "engine/batch_sampler.h"

#include <algorithm>

namespace coppice {

SampledTokens BatchSampler::Sample(MatrixView<const float> logits, const StepBatch& batch) {
  draws_.clear();
  entry_begin_.assign(1, 0);
  size_t num_drafts = 0;
  for (const StepBatch::Entry& entry : batch.entries) {  // all draws before any task points at them
    const int32_t births = entry.samples ? entry.sequence->births() : 0;
    for (int32_t i = 0; i < births; ++i) draws_.push_back({.sample = entry.sequence->index + i});
    draws_.insert(draws_.end(), entry.drafts, TokenDraw{.sample = entry.sequence->index});
    entry_begin_.push_back(static_cast<int32_t>(draws_.size()));
    num_drafts += entry.drafts;
  }
  if (paths_.size() < num_drafts) paths_.resize(num_drafts);
  num_paths_ = 0;
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
    if (entry.samples) AddSamples(logits, entry, std::span(draws_).subspan(entry_begin_[e], entry_begin_[e + 1] - entry_begin_[e]));
  }
  sampler_.Run(samples_, scores_);
  return {.draws = draws_, .entry_begin = entry_begin_};
}

void BatchSampler::AddSamples(MatrixView<const float> logits, const StepBatch::Entry& entry, std::span<TokenDraw> draws) {
  Sequence& sequence = *entry.sequence;
  SampleTask task = TaskAfter(sequence);
  const Draft& draft = sequence.draft;
  const int32_t last_known_row = entry.first_logit_row + entry.logit_rows - 1 - entry.drafts;
  const int32_t num_generated = static_cast<int32_t>(sequence.generated.size());
  const uint32_t position = task.position;
  for (int32_t i = Draft::kRoot; i < entry.drafts; ++i) {
    const int32_t depth = draft.DepthOf(i);
    task.logits = logits.Row(last_known_row + 1 + i);
    task.position = position + static_cast<uint32_t>(depth);
    task.banned = BannedAt(sequence, num_generated + depth);
    if (i != Draft::kRoot && task.generated) {
      std::vector<int32_t>& path = paths_[num_paths_++];
      draft.Path(i, &path);
      task.drafted = path;
    }
    if (!draft.proposals.empty()) {  // a chain: token i + 1 was drawn for this row
      const bool verifies = i + 1 < entry.drafts;
      task.proposal = verifies ? draft.proposals[i + 1] : std::span<const float>();
      task.draft = verifies ? draft.tokens[i + 1] : -1;
    }
    task.draws = entry.drafts > 0 ? draws.subspan(i + 1, 1) : draws;
    samples_.push_back(task);
  }
}

SampleTask TaskAfter(Sequence& sequence) {
  const RequestState& request = *sequence.request;
  const SamplingParams& params = request.params.sampling;
  SampleTask task{.params = &params, .position = static_cast<uint32_t>(sequence.length())};
  if (params.presence_penalty == 0 && params.frequency_penalty == 0 && params.repetition_penalty == 1) return task;
  while (sequence.counts.total() < sequence.generated.size()) {
    sequence.counts.Add(sequence.generated[sequence.counts.total()], &request.prompt_counts);
  }
  task.prompt = &request.prompt_counts;
  task.generated = &sequence.counts;
  return task;
}

std::span<const int32_t> BannedAt(const Sequence& sequence, int32_t num_generated) {
  const RequestState& request = *sequence.request;
  return num_generated < request.params.min_tokens ? std::span<const int32_t>(request.end_ids) : std::span<const int32_t>();
}

}  // namespace coppice
