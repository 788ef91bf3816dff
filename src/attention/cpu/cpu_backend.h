// The CPU backend: which kernels run on this machine, what the planner must know of them, and the context's operations.
// Layer: attention/cpu.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "attention/cpu/tile_forms.h"

namespace coppice::attention {

// `executor` outlives the backend. INVALID_ARGUMENT if it is null. REQUIRES: the CPU has the instruction sets of `forms`.
Result<std::unique_ptr<Backend>> MakeCpuBackend(Executor* executor, const cpu::TileForms& forms);
// With HostTileForms().
Result<std::unique_ptr<Backend>> MakeCpuBackend(Executor* executor);

}  // namespace coppice::attention
