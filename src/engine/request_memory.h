// Memory of requests and their sequences, close together. Any thread submits, the stepping thread forgets. Layer: engine.
#pragma once

#include <array>
#include <cstddef>
#include <memory_resource>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/cache_line.h"
#include "core/math.h"

namespace coppice {

// Blocks of whole cache lines, cut from slabs and used again by size; large ones come from the heap. Slabs go with the resource.
// Thread-safe. Not one of std::pmr's: once memory was refused in them, those of libstdc++ 12 crash.
class RequestMemory final : public std::pmr::memory_resource {
 public:
  RequestMemory() = default;
  ~RequestMemory() override {
    for (std::byte* const slab : slabs_) ::operator delete(slab, kAlignment);
  }

 private:
  static constexpr size_t kSlab = 64 << 10, kLargest = 4 << 10;  // bytes
  static constexpr std::align_val_t kAlignment{kCacheLine};
  struct Free {
    Free* next;
  };

  static size_t LinesOf(size_t bytes) { return CeilDiv(bytes, size_t{kCacheLine}); }

  void* do_allocate(size_t bytes, size_t alignment) override {
    if (bytes > kLargest || alignment > kCacheLine) return ::operator new(bytes, std::align_val_t(alignment));
    const std::lock_guard lock(mutex_);
    Free*& free = free_[LinesOf(bytes)];
    if (free != nullptr) return std::exchange(free, free->next);
    const size_t size = LinesOf(bytes) * kCacheLine;
    if (left_ < size) {
      slabs_.reserve(slabs_.size() + 1);  // first: what throws has changed nothing
      slabs_.push_back(static_cast<std::byte*>(::operator new(kSlab, kAlignment)));
      left_ = kSlab;
    }
    left_ -= size;
    return slabs_.back() + left_;
  }
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override {
    if (bytes > kLargest || alignment > kCacheLine) return ::operator delete(memory, std::align_val_t(alignment));
    const std::lock_guard lock(mutex_);
    Free*& free = free_[LinesOf(bytes)];
    free = new (memory) Free{free};
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::mutex mutex_;
  std::vector<std::byte*> slabs_;
  size_t left_ = 0;                                      // bytes of the last slab, its first ones
  std::array<Free*, kLargest / kCacheLine + 1> free_{};  // by cache lines
};

}  // namespace coppice
