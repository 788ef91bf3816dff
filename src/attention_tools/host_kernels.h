// Which of attention's CPU kernels run on this machine, and why. Layer: attention_tools.
#pragma once

#include <string_view>

#include "core/cpu/kernel_probe.h"

namespace coppice::attention {

// The name that COPPICE_CPU_ISA would give those of the table: "avx2".
std::string_view HostKernelsName();
// Tiles of bf16, which may be of other sets. Timed at a process's first call, or read.
ProbeReport HostTiles();

}  // namespace coppice::attention
