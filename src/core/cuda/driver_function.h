// Functions of the CUDA driver, found at run time: nothing here is linked against the driver. Layer: core/cuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace coppice::cuda {

// False where the driver has no function of this name.
template <class Function>
bool FindDriverFunction(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  *function = reinterpret_cast<Function>(found);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess;
}

}  // namespace coppice::cuda
