// The CUDA backend. Layer: attention/cuda; this header needs no CUDA, and cuda_unavailable.cc stands in where CUDA is not built.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace coppice::attention {

// UNAVAILABLE, with the reason, if CUDA is not built, the device does not exist or the kernels do not run on it (sm_90 needed).
Result<std::unique_ptr<Backend>> MakeCudaBackend(int device);

}  // namespace coppice::attention
