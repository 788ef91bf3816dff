// The CUDA backend. Layer: attention/cuda; this header needs no CUDA, and cuda_unavailable.cc stands in where CUDA is not built.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace coppice::attention {

// As Context::CreateCuda. UNAVAILABLE, with the reason, if the device does not exist or no kernel runs on it (sm_80 needed).
Result<std::unique_ptr<Backend>> MakeCudaBackend(int device, CudaKernels kernels = CudaKernels::kAuto);

}  // namespace coppice::attention
