// Device memory that is given back together, and comes back at the same addresses. Layer: core/cuda.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "core/cuda/virtual_memory.h"
#include "core/device.h"

namespace coppice::cuda {

// Thread-safe. The device is current for all calls.
class ReleasableMemory {
 public:
  explicit ReleasableMemory(int ordinal) : ordinal_(ordinal) {}

  // Zero-filled. RESOURCE_EXHAUSTED; FAILED_PRECONDITION while it is released.
  Result<DeviceMemory> Allocate(size_t bytes);
  // As Device::Release and Restore.
  Status Release(bool keep_content);
  Status Restore();

 private:
  struct Block {
    std::unique_ptr<VirtualMemory> memory;
    size_t used = 0;
    DeviceMemory content;  // while it is released, in host memory; empty: not kept
  };
  std::vector<std::shared_ptr<Block>> LiveBlocks();

  const int ordinal_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::weak_ptr<Block>> blocks_;
  std::weak_ptr<Block> open_;  // of small pieces, the last one: it may have room for more
  bool is_released_ = false;
};

}  // namespace coppice::cuda
