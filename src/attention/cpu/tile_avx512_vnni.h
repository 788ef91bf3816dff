// Tile kernels compiled for AVX-512 with VNNI, whose sums of pairs the dense tiles of bf16 gain by. Layer: attention/cpu.
#pragma once

#include "attention/cpu/kernel_table.h"

namespace coppice::attention::cpu {

TileKernels Avx512VnniKernels(DType q_dtype, DType kv_dtype);  // REQUIRES: Isa::kAvx512, CpuHasAvx512Vnni()

}  // namespace coppice::attention::cpu
