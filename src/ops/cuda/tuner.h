// Ops::Tune: fills the algorithm file for what a model's steps multiply. Layer: ops/cuda, host only.
#pragma once

#include <map>

#include "core/device.h"
#include "ops/cuda/algorithm_file.h"
#include "ops/cuda/library_product.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

// Products of a step that the algorithm file is asked for, and whether our own kernel takes each.
using TunableProducts = std::map<ProductShape, bool>;

struct TuneParts {
  Device* device = nullptr;
  LibraryProduct* library = nullptr;
  AlgorithmFile* algorithms = nullptr;
  const TunableProducts* multiplied = nullptr;  // by the last step
};

// Measures what the file does not have and writes it.
Status TuneProducts(const TuneParts& parts, int64_t max_rows, const Ops::StepOfRows& step, Stream stream);

}  // namespace coppice::ops::cuda
