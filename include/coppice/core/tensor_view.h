// Non-owning views of row-major data, passed by value. Memory is owned by Buffer (src/core/buffer.h) or by the caller.
// Layer: public API.
#pragma once

#include <cstdint>
#include <span>

namespace coppice {

// A row-major matrix: element (r, c) is data[r * stride + c]. `stride` is in elements and at least `cols`.
template <class T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;

  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t stride) : data(data), rows(rows), cols(cols), stride(stride) {}
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }  // NOLINT(google-explicit-constructor)

  T& operator()(int64_t r, int64_t c) const { return data[r * stride + c]; }
  std::span<T> Row(int64_t r) const { return {data + r * stride, static_cast<size_t>(cols)}; }
  MatrixView Rows(int64_t begin, int64_t count) const { return {data + begin * stride, count, cols, stride}; }
};

}  // namespace coppice
