// The CPU backend: which kernels run on this machine, what the planner must know of them, and the context's operations.
// Layer: attention/cpu.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace coppice::attention {

// `executor` outlives the backend. INVALID_ARGUMENT if it is null.
Result<std::unique_ptr<Backend>> MakeCpuBackend(Executor* executor);

}  // namespace coppice::attention
