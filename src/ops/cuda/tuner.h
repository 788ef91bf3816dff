// Ops::Tune: fills the algorithm file for the weights of a model. Layer: ops/cuda, host only.
#pragma once

#include <set>
#include <tuple>

#include "ops/cuda/algorithm_file.h"
#include "ops/cuda/gated_product.h"
#include "ops/cuda/library_product.h"

namespace coppice::ops::cuda {

// A packed weight as far as the time of its products goes.
struct WeightShape {
  DType dtype = DType::kBF16;
  int64_t n = 0, k = 0, stride = 0, out_features = 0;
  bool is_gated = false;
  auto Tuple() const { return std::tuple(dtype, n, k, is_gated); }
  bool operator<(const WeightShape& other) const { return Tuple() < other.Tuple(); }
};

struct TuneParts {
  Device* device = nullptr;
  LibraryProduct* library = nullptr;
  const GatedProduct* gated = nullptr;
  int64_t gate_rows = 0;  // of a piece of gate and up, by the library
  AlgorithmFile* algorithms = nullptr;
};

// Measures what the file does not have and writes it.
Status TuneProducts(const TuneParts& parts, const std::set<WeightShape>& weights, int64_t max_rows, cudaStream_t stream);

}  // namespace coppice::ops::cuda
