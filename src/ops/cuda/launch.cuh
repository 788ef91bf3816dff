// Launches and the small device functions that all kernels of the operations share. Kernels are launched so that they may start
// while the kernel before them in the stream still runs (programmatic dependent launch, Hopper and later): a kernel calls
// LetNextStart as soon as it runs, does what depends on no other kernel (reading weights), and calls WaitForPrevious before it
// touches anything else. Every kernel waits, so that what is complete when one of them passes its wait includes all before it.
// Layer: ops/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "coppice/core/status.h"
#include "core/cuda/cuda_status.h"

namespace coppice::ops::cuda {

__device__ inline void LetNextStart() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ inline void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The row of a CTA where grid.x counts rows: the last one first, since the pass before wrote that last. Of rows that the L2 cannot
// hold together, those in it are then read before others push them out.
__device__ inline int64_t RowOfCta() { return gridDim.x - 1 - blockIdx.x; }

struct LaunchShape {
  dim3 grid;
  int threads = 0;
  size_t shared_bytes = 0;  // dynamic
  cudaStream_t stream = nullptr;
  bool overlaps = false;  // may start before the kernel before it has ended; compute capability 9.0 and later
};

// `what` names the operation in errors. A grid of nothing is no launch.
template <class... Parameters, class... Arguments>
Status Launch(const char* what, const LaunchShape& shape, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0) return OkStatus();
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  config.attrs = &attribute;
  config.numAttrs = shape.overlaps ? 1 : 0;
  return coppice::cuda::CudaStatus(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), what);
}

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
template <class T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}

// N neighbours in memory, moved in accesses of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T values[N];
};
template <int N, class T>
__device__ Pack<T, N> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ void StorePack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Whether rows that begin at `data` and lie `stride` elements apart can be read in accesses of `bytes`.
inline bool IsAligned(const void* data, int64_t stride, size_t element_bytes, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 &&
         stride * static_cast<int64_t>(element_bytes) % static_cast<int64_t>(bytes) == 0;
}

}  // namespace coppice::ops::cuda
