// Random delays for the stress test: kernels instantiated with StressConfig pause at the places where the order of arrivals is
// decided. In any other instantiation the calls are empty. Layer: attention/cuda, tests.
#pragma once

#include <cstdint>

namespace coppice::attention::cuda {

// A kernel's Config with delays.
template <class C>
struct StressConfig : C {
  static constexpr bool kDelays = true;
};

// Lets one warp in four sleep for up to two microseconds; which one and how long depends on the clock, so each launch differs.
template <class C>
__device__ __forceinline__ void StressDelay() {
  if constexpr (C::kDelays) {
    uint32_t x = static_cast<uint32_t>(clock64()) ^ (blockIdx.x * 0x9e3779b9u) ^ (threadIdx.x / 32 * 0x85ebca6bu);
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x = __shfl_sync(0xffffffffu, x ^ x >> 16, 0);
    if (x % 4 == 0) __nanosleep(x >> 21);
  }
}

}  // namespace coppice::attention::cuda
