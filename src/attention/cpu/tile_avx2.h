// Tile kernels compiled for AVX2, FMA and F16C: fp32 arithmetic, every dtype. Layer: attention/cpu.
#pragma once

#include "attention/cpu/kernel_table.h"
#include "attention/cpu/row_ops.h"

namespace coppice::attention::cpu {

TileKernels Avx2Kernels(DType q_dtype, DType kv_dtype);  // REQUIRES: Isa::kAvx2
const RowKernels& Avx2RowKernels();                      // likewise

}  // namespace coppice::attention::cpu
