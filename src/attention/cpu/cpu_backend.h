// The CPU backend: which kernels run on this machine, what the planner must know of them, and the context's operations.
// Layer: attention/cpu.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "attention/cpu/cpu_features.h"

namespace coppice::attention {

// `executor` outlives the backend. INVALID_ARGUMENT if it is null. REQUIRES: isa <= cpu::DetectIsa().
Result<std::unique_ptr<Backend>> MakeCpuBackend(Executor* executor, cpu::Isa isa = cpu::DetectIsa());

}  // namespace coppice::attention
