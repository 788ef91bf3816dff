// Blocks of consecutive slots of one array, by size class: what lets a plan keep its items in place while others come and go.
// Blocks are not joined again: when a pool runs out, the planner lays everything out afresh.
// Layer: attention, private.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "attention/arena.h"

namespace coppice::attention {

class BlockPool {
 public:
  static constexpr int32_t kNone = -1;

  // Slots that a block of `size` occupies: at most a quarter more (four classes an octave).
  static constexpr int32_t Rounded(int32_t size) {
    if (size <= 4) return size;
    const int32_t step = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(size - 1)) / 4);
    return (size + step - 1) / step * step;
  }

  void Layout(Arena& arena, int32_t capacity) {
    next_ = arena.Take<int32_t>(capacity);
    capacity_ = capacity;
  }
  void Clear() {
    free_.fill(kNone);
    used_ = 0;
  }
  // First slot, or kNone when full. A block of size 0 has no slots and begins at 0.
  int32_t Allocate(int32_t size) {
    if (size == 0) return 0;
    int32_t& head = free_[ClassOf(size)];
    if (head != kNone) {
      const int32_t begin = head;
      head = next_[begin];
      return begin;
    }
    const int32_t rounded = Rounded(size);
    if (rounded > capacity_ - used_) return kNone;
    used_ += rounded;
    return used_ - rounded;
  }
  void Free(int32_t begin, int32_t size) {
    if (size == 0) return;
    int32_t& head = free_[ClassOf(size)];
    next_[begin] = head;
    head = begin;
  }
  // Slots handed out so far lie below.
  int32_t used() const { return used_; }

 private:
  static constexpr int32_t ClassOf(int32_t size) {
    const uint32_t rounded = static_cast<uint32_t>(Rounded(size));
    if (rounded <= 4) return static_cast<int32_t>(rounded);
    const int32_t octave = std::bit_width(rounded) - 1;
    return 4 * octave + static_cast<int32_t>(rounded >> (octave - 2));
  }

  std::span<int32_t> next_;
  std::array<int32_t, 160> free_{};
  int32_t capacity_ = 0, used_ = 0;
};

}  // namespace coppice::attention
