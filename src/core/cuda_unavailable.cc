// The CUDA device, and memory of other processes on it, of a build without CUDA. Layer: core.
#include "core/device.h"
#include "core/ipc_memory.h"

namespace coppice {

Result<std::unique_ptr<Device>> Device::CreateCuda(int) {
  return Unavailable("CUDA is not built; configure with -DCOPPICE_CUDA=ON, or use the CPU");
}

Status IpcMemory::CheckSupported() { return Unimplemented("CUDA is not built: memory of a GPU cannot be read"); }
Result<IpcMemory> IpcMemory::Open(const Handle&, const DeviceId&) { return CheckSupported(); }
Status IpcMemory::CopyToHost(size_t, std::span<std::byte>) const { return CheckSupported(); }

}  // namespace coppice
