// Parameters of FewRowsProduct's kernel. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/cuda_status.h"
#include "ops/cuda/rotation.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

// Rows of a weight that are multiplied together: one operand of the tensor cores.
inline constexpr int kFewRowsUnit = 16;

// x as the RMS norm of rows of fp32, which each CTA computes for itself.
struct FewRowsNorm {
  const float* x = nullptr;  // null: x is given
  int64_t x_stride = 0;
  const float* weight = nullptr;
  float eps = 0;
};
inline constexpr int kMaxNormedElements = 4096;  // of all rows, padded to whole chunks

struct FewRowsParams {
  const void* weight;
  int64_t stride;  // elements between its rows
  int32_t units;
  int32_t chunks;  // of a row
  const void* x;
  int64_t x_stride;
  int32_t num_rows, in_features, out_features;
  void* y;
  int64_t y_stride;
  bool y_is_f32;
  const float* bias;
  Epilogue epilogue;
  FewRowsNorm norm;
  RotationParams rotation;  // with slots y is not written; heads are whole units
};

struct FewRowsLaunch {
  int num_ctas = 0;
  bool overlaps = false, after_own = false;
  cudaStream_t stream = nullptr;
};

// Called once on a device before its first launch: the most rows of x for which a CTA has room in so many bytes of shared memory.
Result<int32_t> PrepareFewRowsBf16(int shared_bytes);
Result<int32_t> PrepareFewRowsF16(int shared_bytes);
// One small file each, so that they compile in parallel.
Status LaunchFewRowsBf16(const FewRowsParams& params, const FewRowsLaunch& launch);
Status LaunchFewRowsF16(const FewRowsParams& params, const FewRowsLaunch& launch);

}  // namespace coppice::ops::cuda
