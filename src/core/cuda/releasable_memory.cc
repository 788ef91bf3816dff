// Layer: core/cuda.
#include "core/cuda/releasable_memory.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/math.h"

namespace coppice::cuda {
namespace {

// Pieces below a fraction of it share a block, since a block is whole pages of 2 MiB.
constexpr size_t kSharedBlock = size_t{64} << 20;
constexpr size_t kSmall = size_t{8} << 20;
constexpr size_t kAlignment = 256;  // Device::Allocate

Result<DeviceMemory> PinnedCopyOf(const VirtualMemory& memory, size_t bytes) {
  void* host = nullptr;
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&host, bytes, cudaHostAllocDefault), "cudaHostAlloc"));
  DeviceMemory copy(DeviceMemory::Owner(static_cast<std::byte*>(host), [](std::byte* p) { cudaFreeHost(p); }), bytes);
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaMemcpy(host, memory.data(), bytes, cudaMemcpyDeviceToHost), "copying memory to the host"));
  return Result<DeviceMemory>(std::move(copy));
}

}  // namespace

Result<DeviceMemory> ReleasableMemory::Allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (is_released_) return FailedPrecondition("memory of this kind is released: restore it first");
  std::shared_ptr<Block> block = open_.lock();
  const size_t piece = RoundUp(bytes, kAlignment);
  const bool is_small = piece < kSmall;
  if (!is_small || block == nullptr || block->used + piece > block->memory->size()) {
    block = std::make_shared<Block>();
    COPPICE_ASSIGN_OR_RETURN(block->memory, VirtualMemory::Create(ordinal_, is_small ? kSharedBlock : piece));
    std::erase_if(blocks_, [](const std::weak_ptr<Block>& other) { return other.expired(); });
    blocks_.push_back(block);
    if (is_small) open_ = block;
  }
  std::byte* const data = block->memory->data() + std::exchange(block->used, block->used + piece);
  return DeviceMemory(DeviceMemory::Owner(data, [block = std::move(block)](std::byte*) {}), bytes);
}

std::vector<std::shared_ptr<ReleasableMemory::Block>> ReleasableMemory::LiveBlocks() {
  std::vector<std::shared_ptr<Block>> blocks;
  for (const std::weak_ptr<Block>& weak : blocks_) {
    if (std::shared_ptr<Block> block = weak.lock()) blocks.push_back(std::move(block));
  }
  return blocks;
}

Status ReleasableMemory::Release(bool keep_content) {
  const std::lock_guard lock(mutex_);
  is_released_ = true;
  for (const std::shared_ptr<Block>& block : LiveBlocks()) {
    if (!block->memory->is_mapped()) continue;
    if (keep_content) {
      COPPICE_ASSIGN_OR_RETURN(block->content, PinnedCopyOf(*block->memory, block->used));
    }
    COPPICE_RETURN_IF_ERROR(block->memory->Unmap());
  }
  return OkStatus();
}

Status ReleasableMemory::Restore() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Block>& block : LiveBlocks()) {
    if (!block->memory->is_mapped()) COPPICE_RETURN_IF_ERROR(block->memory->Map());
    if (block->content.size() == 0) continue;
    COPPICE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(block->memory->data(), block->content.data(), block->content.size(), cudaMemcpyHostToDevice),
                   "copying memory back to the device"));
    block->content = {};
  }
  is_released_ = false;
  return CudaStatus(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

}  // namespace coppice::cuda
