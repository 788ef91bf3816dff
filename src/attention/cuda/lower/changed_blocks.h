// Which parts of an image's array changed, in blocks, so that only these are written and copied to the device.
// Layer: attention/cuda.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "attention/plan_units.h"

namespace coppice::attention::cuda {

// Bytes [begin, end) of an image.
struct ByteRange {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// Blocks of an array of T. Allocates in its constructor only.
template <class T>
class ChangedBlocks {
 public:
  explicit ChangedBlocks(int64_t capacity) : marked_(CeilDiv(capacity, kPerBlock)) {}

  void Clear() { std::ranges::fill(marked_, 0); }
  void Mark(int64_t i) { marked_[i / kPerBlock] = 1; }
  // Elements [begin, end).
  void Mark(int64_t begin, int64_t end) {
    if (begin < end) std::fill(marked_.begin() + begin / kPerBlock, marked_.begin() + CeilDiv(end, kPerBlock), 1);
  }
  void Add(const ChangedBlocks& other) { std::ranges::transform(marked_, other.marked_, marked_.begin(), std::bit_or<uint8_t>()); }
  bool Any(int64_t begin, int64_t end) const {
    return begin < end && std::find(marked_.begin() + begin / kPerBlock, marked_.begin() + CeilDiv(end, kPerBlock), 1) !=
                              marked_.begin() + CeilDiv(end, kPerBlock);
  }
  // Marks what lies between marked blocks near each other: one copy takes less than two. f(begin, end) for each run of them among
  // the first `count` elements.
  template <class F>
  void ForEachRun(int64_t count, F&& f) {
    const int64_t blocks = CeilDiv(count, kPerBlock);
    const auto next = [&](int64_t block, uint8_t value) {
      return std::find(marked_.begin() + block, marked_.begin() + blocks, value) - marked_.begin();
    };
    for (int64_t begin = next(0, 1), end; begin < blocks;) {
      int64_t following = begin;
      do {
        end = next(following, 0);
        following = next(end, 1);
        if (following - end > kCopiedGap) break;
      } while (following < blocks);
      std::fill(marked_.begin() + begin, marked_.begin() + end, 1);
      f(begin * kPerBlock, std::min(end * kPerBlock, count));
      begin = following;
    }
  }
  // Runs at most.
  size_t max_runs() const { return marked_.size() / (kCopiedGap + 2) + 1; }

 private:
  static constexpr int64_t kPerBlock = 4096 / sizeof(T);
  static constexpr int64_t kCopiedGap = 8;  // blocks: 32 KB take less than another call

  std::vector<uint8_t> marked_;  // [block]
};

// An array of an image as it was last put, so that what is put again is known to be the same. Allocates in its constructor only.
template <class T>
class KeptArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit KeptArray(int64_t capacity) : values_(capacity), changed_(capacity) {}

  const T& operator[](int64_t i) const { return values_[i]; }
  // What changes from now on is in changed().
  void Begin() { changed_.Clear(); }
  void Put(int64_t i, const T& value) {
    if (values_[i] == value) return;
    values_[i] = value;
    changed_.Mark(i);
  }
  // So many elements have a meaning now.
  void End(int64_t count) { reach_ = std::max(reach_, count); }
  const ChangedBlocks<T>& changed() const { return changed_; }
  // Elements that ever had one: a later plan may reach further than this one.
  int64_t reach() const { return reach_; }
  // Writes the blocks that an image lacks to its array at `offset`, and appends their bytes.
  void Write(ChangedBlocks<T>& lacks, std::byte* image, size_t offset, std::vector<ByteRange>& ranges) const {
    lacks.ForEachRun(reach_, [&](int64_t begin, int64_t end) {
      const ByteRange range{offset + begin * sizeof(T), offset + end * sizeof(T)};
      std::memcpy(image + range.begin, &values_[begin], range.size());
      ranges.push_back(range);
    });
  }
  size_t max_runs() const { return changed_.max_runs(); }

 private:
  std::vector<T> values_;
  int64_t reach_ = 0;
  ChangedBlocks<T> changed_;
};

}  // namespace coppice::attention::cuda
