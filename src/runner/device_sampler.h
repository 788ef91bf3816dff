// Sampling on a GPU: draws whose logits never leave the device. What it does not take the host's BatchSampler does. Layer: runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "coppice/core/status.h"
#include "core/device.h"
#include "core/device_tensor.h"
#include "runner/sampling_slots.h"
#include "runner/step_batch.h"

namespace coppice {

// Work goes in stream order; a step's calls come in the order below, and it is waited for before the third step after it begins.
// Thread-compatible.
class DeviceSampler {
 public:
  struct Limits {
    int32_t max_draws = 0, max_rows = 0;  // of a step
    int32_t vocab_size = 0;
  };
  // `device`, a CUDA device, outlives the result. UNAVAILABLE where CUDA is not built.
  static Result<std::unique_ptr<DeviceSampler>> Create(Device* device, const Limits& limits);
  virtual ~DeviceSampler() = default;

  // Whether it makes all draws of the batch and nothing else is wanted: no penalties, biases, bans, drafts, scores or alternatives.
  static bool Takes(const StepBatch& batch, const SamplingSlots& slots);

  // Puts the tokens that the last step drew into their rows of `token_ids`.
  virtual Status TakeDrawn(int64_t step, std::span<const StepBatch::DrawnToken> rows, DeviceSpan<int32_t> token_ids,
                           Stream stream) = 0;
  // What the next DrawTokens draws: draw i of the batch from row draw_rows[i] of the logits; after those, up to `count`, nothing.
  virtual Status SetDraws(int64_t step, const StepBatch& batch, std::span<const int32_t> draw_rows, int32_t count,
                          const SamplingSlots& slots, Stream stream) = 0;
  // Draws. May be captured into a graph, which then draws what the last SetDraws of that count said. logits: f32.
  virtual Status DrawTokens(const ConstDeviceTensor& logits, int32_t count, Stream stream) = 0;
  // Begins to copy the draws to the host.
  virtual Status Fetch(int64_t step, int32_t count, Stream stream) = 0;
  // Waits for the copy; `draws` receive token and logprob.
  virtual Status Wait(int64_t step, std::span<TokenDraw> draws) = 0;
};

}  // namespace coppice
