// The CUDA device as the attention tests see it. Layer: attention/cuda, tests.
#pragma once

#include <memory>

#include "tests/support/attention_case.h"

namespace coppice::attention::testing {

// Null if the CUDA backend is unavailable here.
std::unique_ptr<TestDevice> MakeCudaTestDevice(int device = 0);

}  // namespace coppice::attention::testing
