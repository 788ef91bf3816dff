#include "ops/cpu/weight_memory.h"

#include <algorithm>
#include <utility>

#include "core/cache_line.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice::ops {

Result<std::shared_ptr<std::byte>> WeightMemory::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, kCacheLine);
  if (chunk_ == nullptr || used_ + bytes > static_cast<int64_t>(chunk_->size())) {
    COPPICE_ASSIGN_OR_RETURN(DeviceMemory memory, device_->Allocate(std::max(bytes, kChunkBytes), MemoryKind::kWeights));
    chunk_ = std::make_shared<DeviceMemory>(std::move(memory));
    used_ = 0;
  }
  std::shared_ptr<std::byte> part(chunk_, chunk_->data() + used_);
  used_ += bytes;
  return part;
}

}  // namespace coppice::ops
