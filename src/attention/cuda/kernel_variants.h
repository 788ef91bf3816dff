// The compiled variants of the attention kernel: one small .cu file each, so that builds run in parallel. Layer: attention/cuda.
#pragma once

#include "coppice/types.h"

namespace coppice::attention::cuda {

struct KernelVariant {
  DType dtype;
  int head_dim;  // after padding
  int kv_tile, threads, shared_bytes;
  const void* function;
};

// The variant for a dtype (bf16 or f16) and head_dim (at most 128).
const KernelVariant& KernelVariantFor(DType dtype, int head_dim);

}  // namespace coppice::attention::cuda
