// Layer: core/cuda.
#include "core/cuda/virtual_memory.h"

#include <cuda_runtime_api.h>

#include <string>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/cuda/driver_function.h"
#include "core/math.h"

namespace coppice::cuda {
namespace {

struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  bool is_complete = false;
};

const Driver& TheDriver() {
  static const Driver driver = [] {
    Driver d;
    d.is_complete = FindDriverFunction("cuMemGetAllocationGranularity", &d.granularity) &&
                    FindDriverFunction("cuMemAddressReserve", &d.reserve) && FindDriverFunction("cuMemAddressFree", &d.free) &&
                    FindDriverFunction("cuMemCreate", &d.create) && FindDriverFunction("cuMemRelease", &d.release) &&
                    FindDriverFunction("cuMemMap", &d.map) && FindDriverFunction("cuMemUnmap", &d.unmap) &&
                    FindDriverFunction("cuMemSetAccess", &d.set_access);
    return d;
  }();
  return driver;
}

Status DriverStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return OkStatus();
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return ResourceExhausted(std::string(what) + ": the device has no memory left");
  return Internal(std::string(what) + ": error " + std::to_string(result) + " of the CUDA driver");
}

CUmemAllocationProp PagesOf(int ordinal) {
  CUmemAllocationProp pages{};
  pages.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  pages.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  return pages;
}

}  // namespace

Status ZeroAndWait(void* data, size_t bytes) {
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaMemset(data, 0, bytes), "cudaMemset"));
  return CudaStatus(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

bool VirtualMemory::IsSupported(int ordinal) {
  // The runtime's attributes lack this one; a granularity is given where it is supported.
  const DeviceGuard guard(ordinal);
  if (cudaFree(nullptr) != cudaSuccess || !TheDriver().is_complete) return false;  // the former makes the context
  const CUmemAllocationProp pages = PagesOf(ordinal);
  size_t granularity = 0;
  return TheDriver().granularity(&granularity, &pages, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS && granularity > 0;
}

Result<std::unique_ptr<VirtualMemory>> VirtualMemory::Create(int ordinal, size_t bytes) {
  const CUmemAllocationProp pages = PagesOf(ordinal);
  size_t granularity = 0;
  COPPICE_RETURN_IF_ERROR(DriverStatus(TheDriver().granularity(&granularity, &pages, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                                       "cuMemGetAllocationGranularity"));
  std::unique_ptr<VirtualMemory> memory(new VirtualMemory(ordinal, RoundUp(bytes, granularity)));
  COPPICE_RETURN_IF_ERROR(DriverStatus(
      TheDriver().reserve(&memory->address_, memory->size_, /*alignment=*/0, /*addr=*/0, /*flags=*/0), "cuMemAddressReserve"));
  COPPICE_RETURN_IF_ERROR(memory->Map());
  return Result<std::unique_ptr<VirtualMemory>>(std::move(memory));
}

VirtualMemory::~VirtualMemory() {
  if (address_ == 0) return;
  const DeviceGuard guard(ordinal_);
  if (is_mapped_) (void)Unmap();
  TheDriver().free(address_, size_);
}

Status VirtualMemory::Unmap() {
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  COPPICE_RETURN_IF_ERROR(DriverStatus(TheDriver().unmap(address_, size_), "cuMemUnmap"));
  is_mapped_ = false;
  return OkStatus();
}

Status VirtualMemory::Map() {
  const CUmemAllocationProp pages = PagesOf(ordinal_);
  CUmemGenericAllocationHandle handle = 0;
  COPPICE_RETURN_IF_ERROR(DriverStatus(TheDriver().create(&handle, size_, &pages, /*flags=*/0), "cuMemCreate"));
  const CUresult mapped = TheDriver().map(address_, size_, /*offset=*/0, handle, /*flags=*/0);
  TheDriver().release(handle);  // the mapping keeps the pages
  COPPICE_RETURN_IF_ERROR(DriverStatus(mapped, "cuMemMap"));
  is_mapped_ = true;
  const CUmemAccessDesc access = {.location = pages.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  COPPICE_RETURN_IF_ERROR(DriverStatus(TheDriver().set_access(address_, size_, &access, /*count=*/1), "cuMemSetAccess"));
  return ZeroAndWait(data(), size_);
}

}  // namespace coppice::cuda
