// RMS and layer norm of fp32 rows, a CTA a row. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/ops.h"

namespace coppice::ops::cuda {

struct NormParams {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* rows = nullptr;  // row i of y is of row rows[i] of x; null: of row i
  const float *weight = nullptr, *bias = nullptr;
  float eps = 0;
  NormKind kind = NormKind::kRms;
  void* y = nullptr;
  int64_t y_stride = 0;
  bool adds = false;  // y += instead of y =; y f32
  int32_t cols = 0;
};

inline NormParams ParamsOf(const ConstDeviceTensor& x, const NormArgs& args, const DeviceTensor& y) {
  return {.x = static_cast<const float*>(x.data),
          .x_stride = x.stride,
          .weight = args.weight.data,
          .bias = args.bias.data,
          .eps = args.eps,
          .kind = args.kind,
          .y = y.data,
          .y_stride = y.stride,
          .cols = static_cast<int32_t>(x.cols)};
}

Status LaunchNorm(const NormParams& params, DType y_dtype, int64_t num_rows, bool overlaps, cudaStream_t stream);

}  // namespace coppice::ops::cuda
