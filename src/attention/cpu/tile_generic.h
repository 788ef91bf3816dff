// The kernel that runs on every CPU and for every dtype: plain C++, fp32 arithmetic. Also the yardstick of the others' tests.
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {

TileKernel GenericTileKernel(DType q_dtype, DType kv_dtype);

}  // namespace coppice::attention::cpu
