// The CPU implementation of Ops, with its choices open for tests and benches.
// Layer: ops, private.
#pragma once

#include <memory>

#include "ops/cpu/kernels.h"
#include "ops/cpu/product_forms.h"
#include "ops/ops.h"

namespace coppice::ops {

enum class ProductLibrary : uint8_t {
  kAuto,    // what is fastest (docs/matrix_products.md)
  kPanels,  // panel kernels only
  kOneDnn,  // oneDNN for any number of rows, where it has fast kernels
};

// REQUIRES: a CPU device with an executor; it outlives the result. `products`: what multiplies, in place of `kernels` alone.
std::unique_ptr<Ops> MakeCpuOps(Device* device, const Ops::Options& options, const Kernels& kernels, ProductLibrary library,
                                const ProductForms& products);
std::unique_ptr<Ops> MakeCpuOps(Device* device, const Ops::Options& options, const Kernels& kernels, ProductLibrary library);
// As Ops::Create.
Result<std::unique_ptr<Ops>> CreateCpuOps(Device* device, const Ops::Options& options);

}  // namespace coppice::ops
