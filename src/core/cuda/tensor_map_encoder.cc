#include "core/cuda/tensor_map_encoder.h"

#include <cuda_runtime_api.h>

namespace coppice::cuda {

Result<EncodeTensorMap> FindTensorMapEncoder() {
  static const EncodeTensorMap encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTensorMap>(function) : nullptr;
  }();
  if (encode == nullptr)
    return Unavailable("the CUDA driver has no cuTensorMapEncodeTiled; expected a driver for CUDA 12.0 or newer");
  return encode;
}

}  // namespace coppice::cuda
