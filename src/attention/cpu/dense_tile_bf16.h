// Dense tiles for bf16 queries and KV: products on bf16 pairs with fp32 accumulation, by AMX tiles or by AVX512-BF16 dots.
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {

TileKernel AmxBf16DenseTile();     // REQUIRES: Isa::kAmxBf16
TileKernel Avx512Bf16DenseTile();  // REQUIRES: Isa::kAvx512Bf16

}  // namespace coppice::attention::cpu
