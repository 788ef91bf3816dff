// For every file that calls the CUDA runtime: its errors as Status, the current device of a scope. Layer: core/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "coppice/core/status.h"

namespace coppice::cuda {

// RESOURCE_EXHAUSTED for memory; UNAVAILABLE for errors after which the device answers nothing else; INTERNAL for the rest. `what`:
// the call.
Status CudaStatus(cudaError_t error, const char* what);

// Makes `device` current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetDevice(&previous_);
    changed_ = previous_ != device;
    if (changed_) cudaSetDevice(device);
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace coppice::cuda
