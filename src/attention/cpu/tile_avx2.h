// Tile kernels compiled for AVX2, FMA and F16C: fp32 arithmetic, every dtype. Layer: attention/cpu.
#pragma once

#include "attention/cpu/kernel_table.h"

namespace coppice::attention::cpu {

TileKernels Avx2Kernels(DType q_dtype, DType kv_dtype);  // REQUIRES: Isa::kAvx2

}  // namespace coppice::attention::cpu
