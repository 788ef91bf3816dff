// The CPU implementation of Ops, with its choices open for tests and benches.
// Layer: ops, private.
#pragma once

#include <memory>

#include "ops/cpu/kernels.h"
#include "ops/ops.h"

namespace coppice::ops {

enum class ProductLibrary : uint8_t {
  kAuto,    // what is fastest (docs/ops.md)
  kPanels,  // panel kernels only
  kOneDnn,  // oneDNN for any number of rows, where it has fast kernels
};

std::unique_ptr<Ops> MakeCpuOps(Executor* executor, const Ops::Options& options, const Kernels& kernels, ProductLibrary library);

}  // namespace coppice::ops
