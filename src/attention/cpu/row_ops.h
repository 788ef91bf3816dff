// Element-wise work on the rows of attention states: folding, rounding, widening. A row's bits depend on the machine alone.
// Layer: attention/cpu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cpu/cpu_features.h"
#include "coppice/core/types.h"

namespace coppice::attention::cpu {

// Any head_dim, fastest where it is a multiple of 8; pointers need no alignment.

// into[e] = into[e] * keep + from[e] * add.
void FoldRow(float* into, float keep, const float* from, float add, int32_t head_dim);
// out[e] = acc[e] * scale, rounded to dtype: to nearest even, NaN stays NaN.
void StoreRow(const float* acc, float scale, int32_t head_dim, DType dtype, std::byte* out);
// to[e] = from[e] widened to fp32.
void LoadRow(const std::byte* from, int32_t head_dim, DType dtype, float* to);

// The same of one instruction set, for the dtypes that have vectors.
struct RowKernels {
  void (*fold)(float* into, float keep, const float* from, float add, int32_t count);
  void (*store_f32)(const float* acc, float scale, int32_t count, float* out);
  void (*store_bf16)(const float* acc, float scale, int32_t count, BF16* out);
  void (*load_bf16)(const BF16* from, int32_t count, float* to);
};
const RowKernels& RowKernelsOf(Isa isa);  // REQUIRES: the machine has it

}  // namespace coppice::attention::cpu
