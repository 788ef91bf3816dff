// Which parts of an image's array changed, in blocks, so that only these are written and copied to the device.
// Layer: attention/cuda.
#pragma once

#include <algorithm>
#include <bit>
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
  explicit ChangedBlocks(int64_t capacity) : blocks_(CeilDiv(capacity, kPerBlock)), words_(CeilDiv(blocks_, 64)) {}

  void Clear() { std::ranges::fill(words_, 0); }
  void Mark(int64_t i) { words_[i / kPerBlock / 64] |= uint64_t{1} << i / kPerBlock % 64; }
  // Elements [begin, end).
  void Mark(int64_t begin, int64_t end) {
    if (begin < end) MarkBlocks(begin / kPerBlock, CeilDiv(end, kPerBlock));
  }
  void Add(const ChangedBlocks& other) { std::ranges::transform(words_, other.words_, words_.begin(), std::bit_or<uint64_t>()); }
  bool Any(int64_t begin, int64_t end) const {
    const int64_t last = CeilDiv(end, kPerBlock);
    return begin < end && Next(begin / kPerBlock, last, true) < last;
  }
  // Marks what lies between marked blocks near each other: one copy takes less than two. f(begin, end) for each run of them among
  // the first `count` elements.
  template <class F>
  void ForEachRun(int64_t count, F&& f) {
    const int64_t blocks = CeilDiv(count, kPerBlock);
    for (int64_t begin = Next(0, blocks, true), end; begin < blocks;) {
      int64_t following = begin;
      do {
        end = Next(following, blocks, false);
        following = Next(end, blocks, true);
        if (following - end > kCopiedGap) break;
      } while (following < blocks);
      MarkBlocks(begin, end);
      f(begin * kPerBlock, std::min(end * kPerBlock, count));
      begin = following;
    }
  }
  // Runs at most.
  size_t max_runs() const { return static_cast<size_t>(blocks_ / (kCopiedGap + 2) + 1); }

 private:
  static constexpr int64_t kPerBlock = 4096 / sizeof(T);
  static constexpr int64_t kCopiedGap = 8;  // blocks: 32 KB take less than another call

  // The first of the blocks [block, end) that is marked, or that is not; `end` if there is none.
  int64_t Next(int64_t block, int64_t end, bool marked) const {
    while (block < end) {
      const uint64_t ahead = (marked ? words_[block / 64] : ~words_[block / 64]) >> block % 64;
      if (ahead != 0) return std::min(block + std::countr_zero(ahead), end);
      block = (block / 64 + 1) * 64;
    }
    return end;
  }
  void MarkBlocks(int64_t begin, int64_t end) {
    for (; begin < end && begin % 64 != 0; ++begin) words_[begin / 64] |= uint64_t{1} << begin % 64;
    for (; begin + 64 <= end; begin += 64) words_[begin / 64] = ~uint64_t{0};
    if (begin < end) words_[begin / 64] |= (uint64_t{1} << (end - begin)) - 1;
  }

  int64_t blocks_;
  std::vector<uint64_t> words_;  // a bit a block
};

// An array of an image as it was last put, so that what is put again is known to be the same. Allocates in its constructor only.
template <class T>
class KeptArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit KeptArray(int64_t capacity) : values_(capacity), changed_(capacity) {}

  const T& operator[](int64_t i) const { return values_[i]; }
  // changed() has the changes from now on.
  void Begin() { changed_.Clear(); }
  // Whether it was another before.
  bool Put(int64_t i, const T& value) {
    if (values_[i] == value) return false;
    values_[i] = value;
    changed_.Mark(i);
    return true;
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
