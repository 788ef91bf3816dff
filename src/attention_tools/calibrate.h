// Measures the constants of the cost model on this machine, with the kernels that will run: `coppice bench calibrate`.
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/cpu_features.h"
#include "attention/machine_model.h"
#include "coppice/core/executor.h"

namespace coppice::attention {

// Takes about two seconds; other load on the machine makes rates too low, so let it be idle. bf16, head_dim 128 (the kernels'
// rates differ little between specs of one dtype).
Result<MachineModel> CalibrateCpu(Executor& executor, cpu::Isa isa = cpu::DetectIsa());

}  // namespace coppice::attention
