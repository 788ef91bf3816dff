// Layer: core/cuda.
#include "core/ipc_memory.h"

#include <cuda_runtime_api.h>
#include <strings.h>

#include <cstring>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/cuda/driver_function.h"

namespace coppice {
namespace {

using cuda::CudaStatus;
using cuda::DeviceGuard;

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(IpcMemory::Handle));

// 8-4-4-4-12 hex digits.
std::string UuidOf(const cudaDeviceProp& properties) {
  std::string text;
  for (size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<int> OrdinalOf(const IpcMemory::DeviceId& device) {
  int count = 0;
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  if (const int64_t* const number = std::get_if<int64_t>(&device)) {
    if (*number >= 0 && *number < count) return static_cast<int>(*number);
    return InvalidArgument("there is no GPU " + std::to_string(*number) + " in this process, which sees " + std::to_string(count));
  }
  const std::string& given = std::get<std::string>(device);
  const char* const wanted = given.c_str() + (strncasecmp(given.c_str(), "GPU-", 4) == 0 ? 4 : 0);
  std::string seen;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
    const std::string uuid = UuidOf(properties);
    if (strcasecmp(uuid.c_str(), wanted) == 0) return ordinal;
    seen += (seen.empty() ? "GPU-" : ", GPU-") + uuid;
  }
  return InvalidArgument("there is no GPU " + given + " in this process, which sees " + seen);
}

// Bytes of the allocation that begins at `data`.
Result<size_t> SizeOfAllocation(const void* data) {
  decltype(&cuMemGetAddressRange) range_of = nullptr;
  CUdeviceptr begin = 0;
  size_t size = 0;
  if (!cuda::FindDriverFunction("cuMemGetAddressRange", &range_of) ||
      range_of(&begin, &size, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS)
    return Internal("the CUDA driver does not say how large memory of another process is");
  return size;
}

}  // namespace

Status IpcMemory::CheckSupported() { return OkStatus(); }

Result<IpcMemory> IpcMemory::Open(const Handle& handle, const DeviceId& device) {
  COPPICE_ASSIGN_OR_RETURN(const int ordinal, OrdinalOf(device));
  const DeviceGuard guard(ordinal);
  cudaIpcMemHandle_t native;
  std::memcpy(&native, handle.data(), handle.size());
  void* data = nullptr;
  if (const cudaError_t error = cudaIpcOpenMemHandle(&data, native, cudaIpcMemLazyEnablePeerAccess); error != cudaSuccess) {
    cudaGetLastError();  // the context stays usable
    return InvalidArgument("the handle cannot be opened on GPU " + std::to_string(ordinal) + " (" + cudaGetErrorString(error) +
                           "): it is to be cudaIpcGetMemHandle's of memory that cudaMalloc gave to another process that runs");
  }
  Owner owner(static_cast<std::byte*>(data), [ordinal](std::byte* mapped) {
    const DeviceGuard guard(ordinal);
    cudaIpcCloseMemHandle(mapped);
  });
  COPPICE_ASSIGN_OR_RETURN(const size_t size, SizeOfAllocation(data));
  return IpcMemory(std::move(owner), size);
}

Status IpcMemory::CopyToHost(size_t offset, std::span<std::byte> to) const {
  return CudaStatus(cudaMemcpy(to.data(), owner_.get() + offset, to.size(), cudaMemcpyDefault), "cudaMemcpy");
}

}  // namespace coppice
