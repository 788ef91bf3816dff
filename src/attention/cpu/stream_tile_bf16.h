// Stream tiles for bf16 queries and KV with AVX512-BF16 dots: few rows, KV from memory.
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {

TileKernel Avx512Bf16StreamTile();  // REQUIRES: Isa::kAvx512Bf16

}  // namespace coppice::attention::cpu
