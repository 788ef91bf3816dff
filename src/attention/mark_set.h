// Marks on the positions of an order, visited along it or against it. A visit may mark what lies ahead: that is visited too.
// Costs a word per 64 positions and a step per mark, so that a plan's stages pass over thousands of unchanged nodes for nothing.
// Layer: attention, private.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "attention/arena.h"

namespace coppice::attention {

class MarkSet {
 public:
  void Layout(Arena& arena, int32_t positions) { words_ = arena.Take<uint64_t>((int64_t{positions} + 63) / 64); }

  void Clear() { std::ranges::fill(words_, 0); }
  void MarkFirst(int32_t count) {
    std::ranges::fill(words_.first(count / 64), ~uint64_t{0});
    if (count % 64 != 0) words_[count / 64] |= (uint64_t{1} << count % 64) - 1;
  }
  void Mark(int32_t at) { words_[at / 64] |= uint64_t{1} << at % 64; }
  bool Marked(int32_t at) const { return (words_[at / 64] >> at % 64 & 1) != 0; }

  // f(position), ascending; f marks only greater ones.
  template <class F>
  void ForEach(F&& f) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t ahead = ~uint64_t{0}; (words_[w] & ahead) != 0;) {
        const int bit = std::countr_zero(words_[w] & ahead);
        f(static_cast<int32_t>(w * 64) + bit);
        ahead = ~uint64_t{1} << bit;  // none after the last bit
      }
    }
  }
  // f(position), descending; f marks only smaller ones.
  template <class F>
  void ForEachBackwards(F&& f) const {
    for (size_t w = words_.size(); w-- > 0;) {
      for (uint64_t ahead = ~uint64_t{0}; (words_[w] & ahead) != 0;) {
        const int bit = 63 - std::countl_zero(words_[w] & ahead);
        f(static_cast<int32_t>(w * 64) + bit);
        ahead = (uint64_t{1} << bit) - 1;
      }
    }
  }

 private:
  std::span<uint64_t> words_;
};

}  // namespace coppice::attention
