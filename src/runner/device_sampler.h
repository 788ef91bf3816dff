// Sampling on a GPU: draws with all their parameters, the most probable tokens and scores, from logits that never leave the device,
// with the values of the host's BatchSampler. Layer: runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "coppice/core/status.h"
#include "core/device.h"
#include "core/device_tensor.h"
#include "runner/batch_sampler.h"
#include "runner/draft_distributions.h"
#include "runner/logit_rows.h"
#include "runner/step_batch.h"

namespace coppice {

// Work goes in stream order; a step's calls come in the order below, those it has no use for left out, and it is waited for before
// the third step after it begins. Thread-compatible.
class DeviceSampler {
 public:
  struct Limits {
    int32_t max_draws = 0, max_rows = 0;  // of a step
    int32_t max_slots = 0;                // of sampling, which are also the most masks of a step
    int32_t vocab_size = 0;
  };
  // `device`, a CUDA device, outlives the result. `distributions`, in its memory, may be null if no draw names any. UNAVAILABLE
  // where CUDA is not built.
  static Result<std::unique_ptr<DeviceSampler>> Create(Device* device, const Limits& limits,
                                                       std::shared_ptr<DraftDistributions> distributions);
  virtual ~DeviceSampler() = default;

  // Makes the batch's edits of slots; a draw that they name is of the step before.
  virtual Status EditSlots(const StepBatch& batch, Stream stream) = 0;
  // Puts the tokens that the last step drew into their rows of `token_ids`.
  virtual Status TakeDrawn(int64_t step, std::span<const StepBatch::DrawnToken> rows, DeviceSpan<int32_t> token_ids,
                           Stream stream) = 0;
  // Sets the work of Draw and Score: the draws and scores of the batch, from the rows that `rows` found for it; after the draws, up
  // to `count`, draws of nothing.
  virtual Status SetWanted(int64_t step, const StepBatch& batch, const LogitRows& rows, int32_t count, Stream stream) = 0;
  // Of the last SetWanted: whether its draws look at temperature and filters alone, for which there is a faster kernel.
  virtual bool draws_plainly() const = 0;
  // Draws from the rows that `rows` found beginning with `first`: `logits` [.., vocab] f32 are theirs. All rows may come in one
  // call, or in several. May be captured into a graph, which then draws what the last SetWanted said: of that count, and as plain.
  virtual Status Draw(const ConstDeviceTensor& logits, int32_t first, int32_t count, Stream stream) = 0;
  // Selects, as the batch asks, among the continuations that its draws have found. Not to be captured. Behind the last Draw.
  virtual Status Select(Stream stream) = 0;
  // Of all scores of the batch, those that look at the rows that `logits` are of, as for Draw.
  virtual Status Score(const ConstDeviceTensor& logits, int32_t first, Stream stream) = 0;
  // Begins to copy to the host what the batch wanted.
  virtual Status Fetch(int64_t step, const StepBatch& batch, Stream stream) = 0;
  // Waits for the copy; `sampled`, reset for the batch, receives it.
  virtual Status Wait(int64_t step, SampledStep* sampled) = 0;
};

}  // namespace coppice
