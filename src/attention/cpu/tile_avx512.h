// Tile kernels compiled for AVX-512 (F, BW, VL, DQ): fp32 arithmetic, every dtype. Layer: attention/cpu.
#pragma once

#include "attention/cpu/kernel_table.h"
#include "attention/cpu/row_ops.h"

namespace coppice::attention::cpu {

// REQUIRES: Isa::kAvx512
TileKernels Avx512Kernels(DType q_dtype, DType kv_dtype);
const RowKernels& Avx512RowKernels();  // likewise

}  // namespace coppice::attention::cpu
