// Byte-pair encoding of one piece of text: the merge rules, looked up by pairs of ids, applied lowest rank first, leftmost first.
// Layer: tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// Immutable after Create: safe to use from several threads.
class BpeEncoder {
 public:
  // INVALID_ARGUMENT where a merge names a token, or makes one, that the vocabulary lacks.
  static Result<BpeEncoder> Create(const TokenizerData& data);

  // Appends the ids of `piece`. A byte that has no token is left out, as Hugging Face does. O(n log n) in its length.
  void Encode(std::string_view piece, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;  // left id in the high half, right id in the low half
    int32_t rank = -1;        // -1: this pair does not merge
    int32_t merged = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};  // two ids of -1, which no token has

  void Insert(const Merge& merge);
  Merge Find(int32_t left, int32_t right) const;
  size_t Slot(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }  // Fibonacci hashing

  void MergeShort(std::vector<int32_t>* ids, size_t first) const;
  void MergeLong(std::vector<int32_t>* ids, size_t first) const;

  std::array<int32_t, 256> byte_ids_;  // -1: no token
  std::vector<Merge> table_;           // open addressing, at most half full, a power of two
  int shift_ = 0;                      // 64 - log2(table_.size())
};

}  // namespace coppice
