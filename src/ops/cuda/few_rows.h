// Products of few rows: a step of up to kMaxFewRows sequences reads every weight once, so its time is the weights' bytes over the
// memory's rate. Layer: ops/cuda. Design and figures: docs/ops.md, "Products of few rows".
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/device.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

inline constexpr int kMaxFewRows = 16;

// A weight as CudaWeight packs it.
struct FewRowsWeight {
  const void* data = nullptr;
  const float* bias = nullptr;  // as packed, or null
  DType dtype = DType::kBF16;
  int64_t n = 0, k = 0, stride = 0;  // packed rows, inputs, elements between rows
  int64_t out_features = 0;

  static FewRowsWeight Of(const CudaWeight& weight) {
    return {.data = weight.data(),
            .bias = weight.bias(),
            .dtype = weight.dtype(),
            .n = weight.rows(),
            .k = weight.in_features(),
            .stride = weight.stride(),
            .out_features = weight.out_features()};
  }
};

class FewRowsProduct {
 public:
  FewRowsProduct() = default;
  static Result<FewRowsProduct> Create(Device* device);

  // Whether the operands are of a dtype and alignment that the kernel takes. Any other shape is the library's.
  static bool Takes(const ConstDeviceTensor& x, const FewRowsWeight& weight);
  // Room for what CTAs that share a tile of the weight count. Allocates, so before anything is captured.
  Status Reserve(const FewRowsWeight& weight);
  // REQUIRES: Takes(x, weight), Reserve(weight) was called; one product at a time, in stream order.
  Status Run(const ConstDeviceTensor& x, const FewRowsWeight& weight, const DeviceTensor& y, const Epilogue& epilogue,
             cudaStream_t stream) const;

 private:
  Device* device_ = nullptr;
  int32_t num_ctas_ = 0;
  bool overlaps_ = false;
  DeviceMemory partials_;  // [CTA][first or last tile of its range][row of x][row of the tile] fp32
  DeviceMemory tickets_;   // [tile]
};

}  // namespace coppice::ops::cuda
