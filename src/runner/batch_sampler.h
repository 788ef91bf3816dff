// Turns a step's logits into what was wanted of it: draws, log-probabilities of the most probable tokens, scores of given ones, the
// best continuations of beams.
// Layer: runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/core/tensor_view.h"
#include "core/thread_pool.h"
#include "runner/draft_distributions.h"
#include "runner/logit_rows.h"
#include "runner/sampler.h"
#include "runner/sampling_slots.h"
#include "runner/step_batch.h"

namespace coppice {

// Results of a step: the memory of a StepResult.
struct SampledStep {
  std::vector<TokenDraw> draws;
  std::vector<float> scores;
  std::vector<int32_t> score_ranks;
  std::vector<TokenLogprob> top_logprobs;
  std::vector<SelectedToken> selected;

  // As if no row held a distribution.
  void Reset(const StepBatch& batch);
};

// Thread-compatible.
class BatchSampler {
 public:
  // `executor` outlives the sampler. `distributions` may be null if no draw names any.
  BatchSampler(Executor* executor, int32_t vocab_size, std::shared_ptr<DraftDistributions> distributions)
      : vocab_size_(vocab_size), sampler_(executor, vocab_size), distributions_(std::move(distributions)) {}

  // Rows whose logits Sample needs, increasing; valid until the next call.
  std::span<const int32_t> FindLogitRows(const StepBatch& batch);
  // `logits` [R, vocab] are of the rows that FindLogitRows found for this batch. REQUIRES: step->Reset(batch).
  void Sample(MatrixView<const float> logits, const StepBatch& batch, const SamplingSlots& slots, SampledStep* step);

 private:
  void AddBeams(MatrixView<const float> logits, const StepBatch& batch, const SamplingSlots& slots, SampledStep* step);
  // Of what its beams go on with, the best of each selection.
  void Select(const StepBatch& batch, SampledStep* step);
  // The task of draws [begin, end), which are of one row and slot.
  SampleTask TaskOf(const StepBatch& batch, size_t begin, size_t end, const SamplingSlots& slots, SampledStep* step);

  int32_t vocab_size_;
  Sampler sampler_;
  std::shared_ptr<DraftDistributions> distributions_;
  LogitRows rows_;
  std::vector<SampleTask> samples_;
  std::vector<ScoreTask> scores_;
  std::vector<BeamTask> beams_;
  std::vector<SelectedToken> continuations_;  // of each beam the best
};

}  // namespace coppice
