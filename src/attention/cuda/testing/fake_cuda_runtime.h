// Stand-ins for the functions of the CUDA runtime that a plan executor calls, so that tests see without a GPU what it uploads and
// launches: device memory is host memory, copies happen at once, launches are written down. Layer: attention/cuda, tests.
#pragma once

#include <cstddef>
#include <vector>

#include "attention/cuda/kernel_params.h"

namespace coppice::attention::cuda::testing {

struct FakeRuntime {
  std::vector<KernelParams> launches;   // of a kernel whose first argument these are
  const void* gather_kernel = nullptr;  // whose first argument is gathered, when it is launched
  GatherParams gathered{};
  unsigned cluster = 1;  // CTAs of a cluster, of the last of them
  size_t bytes_to_device = 0;
  int copies_until_failure = -1;  // how many succeed until all fail; -1: no end
};
FakeRuntime& Runtime();

}  // namespace coppice::attention::cuda::testing
