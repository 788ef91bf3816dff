#include "attention/cuda/testing/fake_cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "attention/cuda/page_patches.h"
#include "attention/cuda/page_rows.h"
#include "core/math.h"

namespace coppice::attention::cuda::testing {

FakeRuntime& Runtime() {
  static FakeRuntime runtime;
  return runtime;
}

}  // namespace coppice::attention::cuda::testing

using coppice::attention::cuda::GatherParams;
using coppice::attention::cuda::KernelParams;
using coppice::attention::cuda::PagePatch;
using coppice::attention::cuda::PatchPagesKernel;
using coppice::attention::cuda::testing::Runtime;

namespace {

cudaError_t Allocate(void** data, size_t bytes) {
  constexpr size_t kAlignment = 256;  // cudaMalloc's
  *data = std::aligned_alloc(kAlignment, coppice::RoundUp(bytes, kAlignment));
  return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

}  // namespace

extern "C" {
cudaError_t cudaMalloc(void** data, size_t bytes) { return Allocate(data, bytes); }
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return Allocate(data, bytes); }
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (Runtime().copies_until_failure == 0) return cudaErrorUnknown;
  if (Runtime().copies_until_failure > 0) --Runtime().copies_until_failure;
  std::memcpy(to, from, bytes);
  if (kind == cudaMemcpyHostToDevice) Runtime().bytes_to_device += bytes;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t) {
  if (function == PatchPagesKernel()) {
    auto* entries = *static_cast<int32_t**>(arguments[0]);
    const auto* patches = *static_cast<const PagePatch**>(arguments[1]);
    const int32_t count = *static_cast<int32_t*>(arguments[2]);
    for (int32_t i = 0; i < count; ++i) entries[patches[i].at] = patches[i].page;
    Runtime().bytes_to_device += count * sizeof(PagePatch);
    return cudaSuccess;
  }
  if (function != nullptr && function == Runtime().gather_kernel) {
    Runtime().gathered = *static_cast<const GatherParams*>(arguments[0]);
  }
  Runtime().launches.push_back(*static_cast<const KernelParams*>(arguments[0]));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  Runtime().cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) Runtime().cluster = config->attrs[i].val.clusterDim.x;
  }
  return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 8;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the stand-in runtime"; }

// Functions that nvcc's host code of a .cu file calls: kernels register themselves before main.
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }
}
