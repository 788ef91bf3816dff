// Stream tiles for bf16 queries and KV on the tile unit: few rows, KV from memory.
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {

TileKernel AmxBf16StreamTile();  // REQUIRES: Isa::kAmxBf16

}  // namespace coppice::attention::cpu
