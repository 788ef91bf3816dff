// The CUDA implementation of Ops: in cuda/ where it is built, else in cuda_unavailable.cc.
// Layer: ops, private.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace coppice::ops {

// REQUIRES: a CUDA device. As Ops::Create.
Result<std::unique_ptr<Ops>> CreateCudaOps(Device* device, const Ops::Options& options);

}  // namespace coppice::ops
