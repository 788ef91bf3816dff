// act(x G^T) * (x U^T) on Hopper through our own kernel: SMs work nearly the same number of steps whatever the shape, and gate and
// up meet in registers. Layer: ops/cuda. Design and figures: docs/matrix_products.md, "Gated products".
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/device.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

// Thread-compatible; calls of one object in stream order, since they share the memory of partial sums. Its sums depend on the
// number of rows, and not on the order of arrival.
class GatedProduct {
 public:
  GatedProduct() = default;
  static Result<GatedProduct> Create(Device* device);

  // Whether the device has what the kernel needs: compute capability 9.0.
  bool IsAvailable() const { return num_clusters_ > 0; }
  // Whether the operands are of a size, dtype and alignment that the kernel takes.
  bool Takes(const ConstDeviceTensor& x, const WeightView& weight, const DeviceTensor& y, Activation activation) const;
  // Whether it is faster than the library's product and a pass over its output, as measured (docs/matrix_products.md).
  bool IsFaster(int64_t rows, const WeightView& weight) const;
  // REQUIRES: Takes.
  Status Run(const ConstDeviceTensor& x, const WeightView& weight, const DeviceTensor& y, Activation activation,
             cudaStream_t stream) const;

 private:
  int32_t num_clusters_ = 0;  // 0: not on this device
  DeviceMemory partials_, flags_;
};

}  // namespace coppice::ops::cuda
