// The CUDA backend. Layer: attention/cuda; this header needs no CUDA, and cuda_unavailable.cc stands in where CUDA is not built.
#pragma once

#include <climits>
#include <memory>

#include "attention/backend.h"

namespace coppice::attention {

// As Context::CreateCuda. UNAVAILABLE, with the reason, if the device does not exist or no kernel runs on it (sm_80 needed).
// most_sms: that a launch takes.
Result<std::unique_ptr<Backend>> MakeCudaBackend(int device, CudaKernels kernels = CudaKernels::kAuto, int most_sms = INT_MAX,
                                                 const MachineModel* machine = nullptr);

}  // namespace coppice::attention
