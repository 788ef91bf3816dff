// Tile kernels compiled for AVX-512 (F, BW, VL, DQ): fp32 arithmetic, every dtype. Layer: attention/cpu.
#pragma once

#include "attention/cpu/kernel_table.h"

namespace coppice::attention::cpu {

// REQUIRES: Isa::kAvx512
TileKernels Avx512Kernels(DType q_dtype, DType kv_dtype);
// For bf16 queries and KV, beside a dense tile that rounds P to bf16: so does this.
TileKernel Avx512RoundingStreamTile();

}  // namespace coppice::attention::cpu
