// Draws of tokens from rows of logits in a GPU's memory, with the filters and random numbers of the host's Sampler (sampler.h).
// Layer: runner/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "coppice/core/status.h"

namespace coppice::cuda {

// One draw, in device memory. A negative row draws nothing.
struct DrawSpec {
  int32_t row = -1;  // of the logits
  uint32_t sample = 0, position = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t unused = 0;
};

// token -1: the row holds no distribution.
struct DrawnToken {
  int32_t token = -1;
  float logprob = 0;
};

// A row of a step whose token is a draw of the step before.
struct DrawnRow {
  int32_t row = 0, draw = 0;
};

struct LogitRows {
  const float* data = nullptr;
  int64_t stride = 0;  // elements
  int32_t vocab = 0;   // at most kMaxDrawVocab
};
inline constexpr int32_t kMaxDrawVocab = 1 << 19;

// drawn[i] of specs[i], for i in [0, count). A draw's result depends on its row and spec alone.
Status LaunchDraw(const LogitRows& logits, const DrawSpec* specs, int32_t count, DrawnToken* drawn, cudaStream_t stream);

// token_ids[rows[i].row] = drawn[rows[i].draw].token, 0 where that is none.
Status LaunchTakeDrawn(const DrawnRow* rows, int32_t count, const DrawnToken* drawn, int32_t* token_ids, cudaStream_t stream);

}  // namespace coppice::cuda
