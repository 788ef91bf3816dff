// Owning host memory: the only place (with ops/cuda and attention/cuda buffers) that allocates bulk data.
// Layer: core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "coppice/core/status.h"

namespace coppice {

// 64-byte aligned, uninitialised or zeroed host memory. Large buffers come from anonymous pages with transparent huge pages
// requested, so that untouched parts cost nothing and TLB misses stay rare. Movable, not copyable; thread-compatible.
class Buffer {
  struct Release {
    size_t mapped_bytes;
    void operator()(std::byte* p) const;
  };

 public:
  Buffer() = default;
  // Zero-filled memory of `bytes` bytes. RESOURCE_EXHAUSTED, with the size, if the system refuses.
  static Result<Buffer> Allocate(size_t bytes);

  // Gives the memory back to the system until it is touched again, when it is zero.
  void Discard();

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  template <class T>
  T* As() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  const T* As() const {
    return reinterpret_cast<const T*>(data_.get());
  }
  template <class T>
  std::span<T> Span() {
    return {As<T>(), size_ / sizeof(T)};
  }
  template <class T>
  std::span<const T> Span() const {
    return {As<T>(), size_ / sizeof(T)};
  }

 private:
  std::unique_ptr<std::byte, Release> data_{nullptr, Release{0}};
  size_t size_ = 0;
};

}  // namespace coppice
