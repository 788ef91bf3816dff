// Carves typed arrays out of one buffer. Run once without memory it counts the bytes, so that PlanSizes is exact by construction.
// Layer: attention, private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/math.h"

namespace coppice::attention {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  // A null base only counts and returns empty spans.
  explicit Arena(std::byte* base) : base_(base) {}

  template <class T>
  std::span<T> Take(int64_t count) {
    const size_t offset = used_;
    used_ += RoundUp(static_cast<size_t>(count) * sizeof(T), kAlignment);
    if (base_ == nullptr) return {};
    return {reinterpret_cast<T*>(base_ + offset), static_cast<size_t>(count)};
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace coppice::attention
