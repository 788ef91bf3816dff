#include "core/cuda/cuda_status.h"

namespace coppice::cuda {
namespace {

// Sticky: the context is gone, and with it all that the process had on the device.
bool IsDeviceLost(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContained: return true;
    default: return false;
  }
}

}  // namespace

Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return OkStatus();
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted
                          : IsDeviceLost(error)              ? StatusCode::kUnavailable
                                                             : StatusCode::kInternal;
  std::string text = std::string(what) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  if (code == StatusCode::kUnavailable) text += "; the device is lost to this process: start it again";
  return {code, std::move(text)};
}

}  // namespace coppice::cuda
