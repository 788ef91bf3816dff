// Products through cuBLASLt. Which of its algorithms runs a shape: the one that Tune measured to be fastest, now or before (the
// file that it keeps); else the one that the library's heuristic names first. In the deterministic mode one algorithm a weight for
// every number of rows, none that splits the sum. Layer: ops/cuda.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/device.h"
#include "ops/cuda/algorithm_file.h"

namespace coppice::ops::cuda {

// y = x W^T (+ y). Row-major; x [rows, k], W [n, k], y [rows, n].
struct ProductShape {
  DType dtype = DType::kBF16;     // of x and W
  DType out_dtype = DType::kF32;  // of y
  bool accumulates = false;       // y +=
  int64_t rows = 0, n = 0, k = 0;
  int64_t x_stride = 0, w_stride = 0, y_stride = 0;
  uint32_t alignment = 16;  // bytes: of every operand's rows
  auto operator<=>(const ProductShape&) const = default;
};

AlgorithmKey AlgorithmKeyOf(const ProductShape& shape);

struct ProductOperands {
  const void *x = nullptr, *w = nullptr;
  void* y = nullptr;
};

// Thread-compatible; calls of one object in stream order.
class LibraryProduct {
 public:
  static Result<std::unique_ptr<LibraryProduct>> Create(Device* device, bool deterministic, AlgorithmFile* algorithms);
  ~LibraryProduct();
  LibraryProduct(const LibraryProduct&) = delete;
  LibraryProduct& operator=(const LibraryProduct&) = delete;

  Status Run(const ProductShape& shape, const ProductOperands& operands, cudaStream_t stream);

  // The library's algorithms for a shape, the one that its heuristic names first.
  Result<std::vector<MeasuredAlgorithm>> Candidates(const ProductShape& shape) const;
  // Chooses anew for each shape: the file has changed.
  void Forget() { chosen_.clear(); }

  static size_t Version() { return cublasLtGetVersion(); }

 private:
  LibraryProduct(Device* device, bool deterministic, AlgorithmFile* algorithms)
      : device_(device), deterministic_(deterministic), algorithms_(algorithms) {}
  struct Description;

  Result<cublasLtMatmulAlgo_t> Choose(const ProductShape& shape);
  Result<cublasLtMatmulAlgo_t> FromHeuristic(const ProductShape& shape);
  bool CanRun(const ProductShape& shape, const cublasLtMatmulAlgo_t& algorithm) const;
  Status Multiply(const ProductShape& shape, const ProductOperands& operands, const cublasLtMatmulAlgo_t& algorithm,
                  cudaStream_t stream) const;

  Device* device_;
  bool deterministic_;
  AlgorithmFile* algorithms_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory workspace_;
  std::map<ProductShape, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace coppice::ops::cuda
