// The CUDA device as the attention tests see it. Layer: attention/cuda, tests.
#pragma once

#include <memory>

#include "tests/support/attention_case.h"

namespace coppice::attention::testing {

// Null if there is no such device, or none that runs these kernels.
std::unique_ptr<TestDevice> MakeCudaTestDevice(int device = 0, CudaKernels kernels = CudaKernels::kAuto);

}  // namespace coppice::attention::testing
