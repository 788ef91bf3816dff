// Which tokens of KV a rank holds where ranks divide them. A page is one of all ranks together, under one id: each has as many of
// its slots as every other, in the order of the ranks, so that whole pages are copied, shared and freed on each rank as on one.
// Layer: runner.
#pragma once

#include <algorithm>
#include <cstdint>

namespace coppice {

struct TokenStripe {
  int32_t index = 0, count = 1;  // of the ranks that divide the tokens
  int32_t page_size = 16;        // slots of a page that the rank has

  // Slots of a page on all ranks together.
  int32_t whole_page_size() const { return count * page_size; }
  // How many of the kv indices [0, end) the rank holds. They are its own kv indices, in the same order.
  int32_t Held(int32_t end) const {
    const int32_t whole = whole_page_size();
    return end / whole * page_size + std::clamp(end % whole - index * page_size, 0, page_size);
  }
  // A slot of all ranks' pages among the rank's own slots; -1: another rank has it, or it is negative.
  int64_t Slot(int64_t slot) const {
    if (slot < 0) return -1;
    const int64_t in_page = slot % whole_page_size() - int64_t{index} * page_size;
    return in_page < 0 || in_page >= page_size ? -1 : slot / whole_page_size() * page_size + in_page;
  }
};

}  // namespace coppice
