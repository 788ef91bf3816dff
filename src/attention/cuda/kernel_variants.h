// The compiled variants of the attention kernel and their launch: one table, one small .cu file each, so that builds run in parallel.
// Layer: attention/cuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "attention/cuda/kernel_params.h"
#include "coppice/types.h"

namespace coppice::attention::cuda {

// kSequential: an SM's stream tiles follow its dense tiles. kConcurrent: both kinds at the same moment in every SM.
enum class Schedule : uint8_t { kSequential, kConcurrent };

struct KernelVariant {
  DType dtype;
  int head_dim;
  Schedule schedule;
  int kv_tile, threads, shared_bytes;
  const void* function;
};

struct VariantPair {
  const KernelVariant* sequential;
  const KernelVariant* concurrent;
  const KernelVariant& of(Schedule schedule) const { return schedule == Schedule::kConcurrent ? *concurrent : *sequential; }
};

// The variants that compute a dtype (bf16 or f16) and head_dim (at most 128).
VariantPair KernelVariants(DType dtype, int head_dim);

}  // namespace coppice::attention::cuda
