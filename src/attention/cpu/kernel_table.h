// Which kernels serve a spec on an instruction set: the one table of the CPU backend.
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/cpu_features.h"
#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {

struct TileKernels {
  TileKernel dense, stream;
  int32_t dense_min_rows;  // from this many rows the dense kernel is the faster one (docs/attention.md)
};
TileKernels SelectKernels(Isa isa, const AttentionSpec& spec);

}  // namespace coppice::attention::cpu
