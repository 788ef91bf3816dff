// Which kernels serve a spec on an instruction set: the one table of the CPU backend.
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/cpu_features.h"
#include "attention/cpu/tile_forms.h"
#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {

struct TileKernels {
  TileKernel dense, stream;
  int32_t dense_min_rows;      // items of this many rows are planned as compute-bound (docs/attention.md)
  int32_t dense_row_unit = 0;  // what their rows are padded to in predictions; 0: dense_min_rows
  // Up to this many rows the stream kernel is the faster one all the same: it computes as many rows at once as a dense tile has.
  int32_t stream_max_rows = 0;
};
TileKernels SelectKernels(Isa isa, const AttentionSpec& spec);
// Of more than one set.
TileKernels SelectKernels(const TileForms& forms, const AttentionSpec& spec);

}  // namespace coppice::attention::cpu
