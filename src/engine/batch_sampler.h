// Turns a step's logits into its new tokens: which rows are sampled, how often, and which only give log-probabilities of the
// prompt. Layer: engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/core/tensor_view.h"
#include "engine/sampler.h"
#include "engine/step_batch.h"

namespace coppice {

// The draws of a step. An entry that samples has one draw per sequence that goes on from it: n where a prompt's samples begin. With
// drafts it has one for its last known token and one for each draft: what follows there, if it comes to that.
struct SampledTokens {
  std::span<const TokenDraw> draws;
  std::span<const int32_t> entry_begin;  // [entries + 1] into draws

  std::span<const TokenDraw> OfEntry(size_t entry) const {
    return draws.subspan(entry_begin[entry], entry_begin[entry + 1] - entry_begin[entry]);
  }
};

// The task of choosing what follows the known tokens of a sequence, but for its logits and draws: parameters, random position and
// counts for penalties, which it brings up to date.
SampleTask TaskAfter(Sequence& sequence);
// What must not come as token number `num_generated` of a sample (min_tokens).
std::span<const int32_t> BannedAt(const Sequence& sequence, int32_t num_generated);

// Thread-compatible.
class BatchSampler {
 public:
  BatchSampler(Executor* executor, int32_t vocab_size) : sampler_(executor, vocab_size) {}

  // `logits` [R, vocab] are of batch.logit_rows. Writes the prompt log-probabilities that were asked for into their requests. The
  // result stays valid until the next call.
  SampledTokens Sample(MatrixView<const float> logits, const StepBatch& batch);

 private:
  // One task for each token after which one is chosen: the last known one and the drafts.
  void AddSamples(MatrixView<const float> logits, const StepBatch::Entry& entry, std::span<TokenDraw> draws);
  Sampler sampler_;
  std::vector<SampleTask> samples_;
  std::vector<ScoreTask> scores_;
  std::vector<TokenDraw> draws_;
  std::vector<int32_t> entry_begin_;
  std::vector<std::vector<int32_t>> paths_;  // drafted tokens up to a draft, where penalties need them
  size_t num_paths_ = 0;
};

}  // namespace coppice
