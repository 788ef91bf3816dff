// A row of logits as it is, and as penalties, biases, bans and masks leave it: computed where it is read, so that a row needs no
// second place in memory and its other readers find it unchanged. Layer: runner/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "runner/cuda/draw.h"

namespace coppice::cuda {

// Takes the place of -infinity, as in the host's Sampler.
inline constexpr float kBannedLogit = -FLT_MAX;

struct PlainLogits {
  static constexpr int kUnroll = 8;  // loads of a thread under way in a pass over the row
  const float* values;
  __device__ float operator[](int token) const { return values[token]; }
};

// Adjustments of a row; in shared memory, since they would take too many registers. Null: none of that kind.
struct Adjustment {
  const float* values;
  const uint32_t* counts;
  const float* biases;
  const uint32_t* mask;
  const int32_t* path;
  int path_count;
  float presence_penalty, frequency_penalty, repetition_penalty;
  bool bans_ends;

  __device__ static bool IsNeeded(const DrawSpec& spec) { return spec.has_counts || spec.has_biases || spec.mask >= 0; }
  __device__ static Adjustment Of(const DrawSpec& spec, const float* row, const DrawMemory& memory) {
    const int64_t table = int64_t{spec.slot} * memory.slots.vocab;
    return {.values = row,
            .counts = spec.has_counts ? memory.slots.counts + table : nullptr,
            .biases = spec.has_biases ? memory.slots.biases + table : nullptr,
            .mask = spec.mask >= 0 ? memory.masks + int64_t{spec.mask} * memory.mask_words : nullptr,
            .path = memory.draft_tokens + spec.path_begin,
            .path_count = spec.path_count,
            .presence_penalty = spec.presence_penalty,
            .frequency_penalty = spec.frequency_penalty,
            .repetition_penalty = spec.repetition_penalty,
            .bans_ends = spec.bans_ends};
  }
};

// In the order and with the roundings of Sampler::Adjust: no fused products.
struct AdjustedLogits {
  static constexpr int kUnroll = 2;  // 4 spill
  const Adjustment* by;

  __device__ float operator[](int token) const {
    float logit = by->values[token];
    if (by->counts != nullptr) {
      const uint32_t entry = by->counts[token];
      if (entry != 0 || by->path_count > 0) logit = Penalised(logit, token, entry);
      if (by->bans_ends && (entry & kEndsSample) != 0) return kBannedLogit;
    }
    if (by->biases != nullptr) {
      const float bias = by->biases[token];
      if (bias != 0) logit = fmaxf(logit + bias, kBannedLogit);
    }
    const bool is_allowed = by->mask == nullptr || (by->mask[token / 32] >> token % 32 & 1) != 0;
    return is_allowed ? logit : kBannedLogit;
  }

 private:
  // Of few tokens, and so in a place of its own: unrolled loops stay short.
  __device__ __noinline__ float Penalised(float logit, int token, uint32_t entry) const {
    const uint32_t count = entry & kCountMask;
    const bool in_prompt = (entry & kInPrompt) != 0;
    bool is_generated = count > 0;
    if (in_prompt || is_generated) logit = Repeated(logit);
    if (is_generated) {
      const float frequency = __fmul_rn(by->frequency_penalty, static_cast<float>(count));
      logit = __fsub_rn(logit, __fadd_rn(by->presence_penalty, frequency));
    }
    for (int i = 0; i < by->path_count; ++i) {
      if (by->path[i] != token) continue;
      if (!is_generated) {
        if (!in_prompt) logit = Repeated(logit);
        logit = __fsub_rn(logit, by->presence_penalty);
        is_generated = true;
      }
      logit = __fsub_rn(logit, by->frequency_penalty);
    }
    return logit;
  }
  __device__ float Repeated(float logit) const {
    if (by->repetition_penalty == 1) return logit;
    return logit > 0 ? __fdiv_rn(logit, by->repetition_penalty) : __fmul_rn(logit, by->repetition_penalty);
  }
};

}  // namespace coppice::cuda
