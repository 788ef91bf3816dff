// Device memory whose address outlives its pages: a reserved range of addresses, and physical memory that is mapped there or not
// (CUDA's virtual memory management). Layer: core/cuda.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "coppice/core/status.h"

namespace coppice::cuda {

// Zeroes device memory, and waits, since streams that do not wait for the default one must not see it before.
Status ZeroAndWait(void* data, size_t bytes);

// Thread-compatible.
class VirtualMemory {
 public:
  static bool IsSupported(int ordinal);
  // Mapped and zero; `bytes` are rounded up to what the device maps at a time (2 MiB). RESOURCE_EXHAUSTED.
  static Result<std::unique_ptr<VirtualMemory>> Create(int ordinal, size_t bytes);
  ~VirtualMemory();
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  size_t size() const { return size_; }
  bool is_mapped() const { return is_mapped_; }
  // Gives the pages back. REQUIRES: mapped; no work that uses them is under way.
  Status Unmap();
  // Zero-filled. REQUIRES: not mapped. RESOURCE_EXHAUSTED.
  Status Map();

 private:
  VirtualMemory(int ordinal, size_t size) : ordinal_(ordinal), size_(size) {}

  const int ordinal_;
  const size_t size_;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
};

}  // namespace coppice::cuda
