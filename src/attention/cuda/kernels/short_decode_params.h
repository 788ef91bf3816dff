// Variants of the kernel of short decode steps, and its arguments. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/kernel_params.h"

namespace coppice::attention::cuda {

inline constexpr int kShortThreads = 256;
inline constexpr int kShortMaxGroup = 32;

struct ShortDecodeParams {
  KernelParams plan;
  const void *k, *v;
  int64_t page_stride, head_stride, slot_stride;  // elements
};

}  // namespace coppice::attention::cuda
