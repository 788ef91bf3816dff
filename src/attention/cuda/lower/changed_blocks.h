// Which parts of an image's array a translation changed, in blocks, so that only these are written and copied to the device.
// Layer: attention/cuda.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// An array of an image as it was last written, so that what is written again is known to be the same. Allocates in its constructor
// only.
template <class T>
class KeptArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit KeptArray(int64_t capacity) : values_(capacity), changed_(capacity) {}

  const T& operator[](int64_t i) const { return values_[i]; }
  void Begin() { changed_.Clear(); }
  void Put(int64_t i, const T& value) {
    if (values_[i] == value) return;
    values_[i] = value;
    changed_.Mark(i);
  }
  // Writes what changed among the first `count` elements to an array at `offset` of the image, all that were ever written if
  // nothing is known of it, and appends their bytes.
  void Write(int64_t count, bool known, std::byte* image, size_t offset, std::vector<ByteRange>& ranges) {
    written_ = std::max(written_, count);
    if (!known) changed_.Mark(0, written_);  // a later plan may reach further than this one
    changed_.ForEachRun(known ? count : written_, [&](int64_t begin, int64_t end) {
      const ByteRange range{offset + begin * sizeof(T), offset + end * sizeof(T)};
      std::memcpy(image + range.begin, &values_[begin], range.size());
      ranges.push_back(range);
    });
  }
  size_t max_runs() const { return changed_.max_runs(); }

 private:
  std::vector<T> values_;
  int64_t written_ = 0;  // elements at most, of all plans so far
  ChangedBlocks<T> changed_;
};

}  // namespace coppice::attention::cuda
