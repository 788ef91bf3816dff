// Memory of a GPU that another process has allocated, and shares by a handle (CUDA IPC).
// Layer: core. cuda/ipc_memory.cc and cuda_unavailable.cc implement it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>

#include "coppice/core/status.h"

namespace coppice {

// An allocation of another process, mapped into this one. Movable; thread-compatible. REQUIRES: the other process keeps it.
class IpcMemory {
 public:
  using Handle = std::array<std::byte, 64>;  // a cudaIpcMemHandle_t
  // A GPU's number in this process, or its UUID, "GPU-8-4-4-4-12 hex digits" with "GPU-" or without, which all processes have
  // alike.
  using DeviceId = std::variant<int64_t, std::string>;

  // UNIMPLEMENTED in a build without CUDA.
  static Status CheckSupported();
  // UNIMPLEMENTED as CheckSupported; INVALID_ARGUMENT: there is no such GPU, or the handle is of none of its allocations, among
  // them those of this process.
  static Result<IpcMemory> Open(const Handle& handle, const DeviceId& device);

  // The whole allocation, in the GPU's memory.
  std::span<const std::byte> data() const { return {owner_.get(), size_}; }
  // Copies bytes of it, which `to` has the number of, to host memory, and waits.
  Status CopyToHost(size_t offset, std::span<std::byte> to) const;

 private:
  using Owner = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;  // unmaps
  IpcMemory(Owner owner, size_t size) : owner_(std::move(owner)), size_(size) {}

  Owner owner_;
  size_t size_ = 0;
};

}  // namespace coppice
