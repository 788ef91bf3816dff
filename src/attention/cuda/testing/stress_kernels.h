// Kernels with random delays, and the comparison that runs between their launches. Layer: attention/cuda, tests.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/cuda/kernel_variants.h"

namespace coppice::attention::cuda {

// bf16, for sm_90a; head_dim 64, of those with overlapped tiles 128.
extern const KernelVariant kStressHopper, kStressSmallPages, kStressOverlapped, kStressDeterministic, kStressMmaSync;

// Adds the number of differing words to *differences and overwrites `got`, so that the next launch has to write all of it.
void CompareAndPoison(uint32_t* got, const uint32_t* want, int64_t words, unsigned long long* differences, cudaStream_t stream);

}  // namespace coppice::attention::cuda
