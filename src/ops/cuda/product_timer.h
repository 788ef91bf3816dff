// Times products over weights that do not come from the cache. Layer: ops/cuda, host only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/device.h"
#include "ops/cuda/cuda_weight.h"

namespace coppice::ops::cuda {

// Copies of one weight, filled with random numbers, enough of them that using them in turn finds none in L2; and an input and an
// output.
class ProductOperandsMemory {
 public:
  struct Shape {
    DType dtype = DType::kBF16, out_dtype = DType::kF32;
    int64_t n = 0, stride = 0, max_rows = 0;
  };
  static Result<ProductOperandsMemory> Create(Device* device, const Shape& shape);

  int copies() const { return copies_; }
  const void* Weight(int copy) const { return weights_.data() + copy * copy_bytes_; }
  const void* x() const { return x_.data(); }
  void* y() const { return y_.data(); }

 private:
  DeviceMemory weights_, x_, y_;
  size_t copy_bytes_ = 0;
  int copies_ = 0;
};

// Microseconds of one call of run(i), i = 0, 1, ..., launches - 1, which are captured into a graph since a small product takes less
// time than its launch: the best of a few replays after one that warms up.
Result<double> TimeInGraph(Device* device, int launches, const std::function<Status(int)>& run, cudaStream_t stream);

}  // namespace coppice::ops::cuda
