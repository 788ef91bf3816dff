// Pseudo-random numbers for the benches of the card's physics. Layer: attention_tools.
#pragma once

#include <cstdint>

namespace coppice::attention::cuda::bench {

// A number in which every bit depends on all bits of x.
__device__ __forceinline__ uint32_t Mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

}  // namespace coppice::attention::cuda::bench
