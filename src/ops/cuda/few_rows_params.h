// What FewRowsProduct gives its kernel. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/cuda_status.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

// Registers allow two CTAs an SM: one streams, the next product's waits beside it with its first weights under way.
inline constexpr int kFewRowsCtasPerSm = 1;

struct FewRowsParams {
  const void* weight;
  int64_t stride;  // elements between its rows
  int32_t tiles;
  int32_t chunks;  // of a row
  const void* x;
  int64_t x_stride;
  int32_t num_rows, in_features, out_features;
  void* y;
  int64_t y_stride;
  bool y_is_f32;
  const float* bias;
  Epilogue epilogue;
  float* partials;
  int32_t* tickets;
};

// One small file each, so that they compile in parallel.
Status LaunchFewRowsBf16(const FewRowsParams& params, int num_ctas, bool overlaps, cudaStream_t stream);
Status LaunchFewRowsF16(const FewRowsParams& params, int num_ctas, bool overlaps, cudaStream_t stream);

}  // namespace coppice::ops::cuda
