// Views of device memory: what a kernel is given. A view neither owns nor says which device; its caller knows. Typed apart
// from the host's MatrixView and std::span, so that mixing the two does not compile; on a CPU, device memory is host memory and
// HostView gives the one for the other.
// Layer: core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "coppice/core/tensor_view.h"
#include "coppice/core/types.h"

namespace coppice {

// A run of `size` elements in device memory.
template <class T>
struct DeviceSpan {
  T* data = nullptr;
  int64_t size = 0;

  bool empty() const { return size == 0; }
  // Elements [begin, begin + count).
  DeviceSpan Sub(int64_t begin, int64_t count) const { return {data + begin, count}; }
  operator DeviceSpan<const T>() const { return {data, size}; }  // NOLINT(google-explicit-constructor)
};

// A row-major matrix in device memory whose element type is known at run time: element (r, c) is at r * stride + c. `stride` is in
// elements and at least `cols`. Rows of several heads are [heads * dim] columns, heads contiguous.
template <class Byte>
struct BasicDeviceTensor {
  Byte* data = nullptr;  // void or const void
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, stride = 0;

  operator BasicDeviceTensor<const void>() const {
    return {data, dtype, rows, cols, stride};
  }  // NOLINT(google-explicit-constructor)
  // Rows [begin, begin + count).
  BasicDeviceTensor Rows(int64_t begin, int64_t count) const {
    using Bytes = std::conditional_t<std::is_const_v<Byte>, const std::byte, std::byte>;
    return {static_cast<Bytes*>(data) + begin * stride * static_cast<int64_t>(SizeOf(dtype)), dtype, count, cols, stride};
  }
  // Columns [begin, begin + count) of every row.
  BasicDeviceTensor Cols(int64_t begin, int64_t count) const {
    using Bytes = std::conditional_t<std::is_const_v<Byte>, const std::byte, std::byte>;
    return {static_cast<Bytes*>(data) + begin * static_cast<int64_t>(SizeOf(dtype)), dtype, rows, count, stride};
  }
};
using DeviceTensor = BasicDeviceTensor<void>;
using ConstDeviceTensor = BasicDeviceTensor<const void>;

// REQUIRES: the memory is the host's (Device::kind() is kCpu), and dtype is that of T.
template <class T>
MatrixView<T> HostView(const DeviceTensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.rows, tensor.cols, tensor.stride};
}
template <class T>
MatrixView<const T> HostView(const ConstDeviceTensor& tensor) {
  return {static_cast<const T*>(tensor.data), tensor.rows, tensor.cols, tensor.stride};
}

}  // namespace coppice
