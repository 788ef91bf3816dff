// Tile kernels compiled for AVX2 and AVX-VNNI, whose sums of pairs the dense tiles of bf16 gain by. Layer: attention/cpu.
#pragma once

#include "attention/cpu/kernel_table.h"

namespace coppice::attention::cpu {

TileKernels AvxVnniKernels(DType q_dtype, DType kv_dtype);  // REQUIRES: Isa::kAvxVnni

}  // namespace coppice::attention::cpu
