// Host memory seen as a CPU's device memory: for tests and benches.
// Layer: ops, private.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_tensor.h"

namespace coppice::ops {

inline DeviceTensor HostTensor(float* data, int64_t rows, int64_t cols) { return {data, DType::kF32, rows, cols, cols}; }
inline DeviceTensor HostTensor(std::vector<float>& values, int64_t rows, int64_t cols) {
  return HostTensor(values.data(), rows, cols);
}
inline ConstDeviceTensor HostTensor(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {values.data(), DType::kF32, rows, cols, cols};
}
inline DeviceTensor HostTensor(std::vector<BF16>& values, int64_t rows, int64_t cols) {
  return {values.data(), DType::kBF16, rows, cols, cols};
}
template <class T>
DeviceSpan<const T> HostSpan(const std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

}  // namespace coppice::ops
