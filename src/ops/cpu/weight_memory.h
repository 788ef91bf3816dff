// Where packed weights lie. Layer: ops, private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device.h"

namespace coppice::ops {

// Zeroed memory for one kind of weights, in the order in which a model packs them: nearly all of it in huge pages, which most of a
// small model's weights would be too small to have of their own.
class WeightMemory {
 public:
  explicit WeightMemory(Device* device) : device_(device) {}
  // Lives as long as any part of its chunk.
  Result<std::shared_ptr<std::byte>> Allocate(int64_t bytes);

 private:
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;  // what is never touched costs nothing
  Device* device_;
  std::shared_ptr<DeviceMemory> chunk_;
  int64_t used_ = 0;
};

}  // namespace coppice::ops
