#include "core/cuda/testing/lose_device.h"

#include "core/cuda/cuda_status.h"

namespace coppice::cuda {
namespace {

__global__ void TrapKernel() { __trap(); }

}  // namespace

void LoseDevice(int ordinal) {
  const DeviceGuard guard(ordinal);
  TrapKernel<<<1, 1>>>();
}

}  // namespace coppice::cuda
