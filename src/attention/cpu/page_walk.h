// A walk along the rows of one head's K and V, page after page, for kernels that take them one after the other: it divides by the
// page size once, where it begins. Include it inside a kernel's region, so that it is compiled for its instruction set; everything
// has internal linkage. Layer: attention/cpu.
#pragma once

#include <algorithm>

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {
namespace {

class PageWalk {
 public:
  // `index` is at most one past the tokens of the page row.
  PageWalk(const HeadKv& kv, int32_t index)
      : kv_(&kv), index_(index), slot_(index % kv.page_size), page_(kv.pages + index / kv.page_size) {}

  int32_t index() const { return index_; }
  int32_t left_in_page() const { return kv_->page_size - slot_; }  // with the present token
  const std::byte* K() const { return kv_->k + Offset(); }
  const std::byte* V() const { return kv_->v + Offset(); }
  // At most left_in_page().
  void Advance(int32_t tokens) {
    index_ += tokens;
    slot_ += tokens;
    if (slot_ < kv_->page_size) return;
    slot_ = 0;
    ++page_;
  }
  // f(index, count, k, v) for the tokens before `end`, as far as each page has them: rows are slot_bytes apart.
  template <class F>
  [[gnu::always_inline]] void ForEachPage(int32_t end, const F& f) {
    while (index_ < end) {
      const int32_t count = std::min(end - index_, left_in_page());
      f(index_, count, K(), V());
      Advance(count);
    }
  }

  // f(index, k, v) for each of them.
  template <class F>
  [[gnu::always_inline]] void ForEachRow(int32_t end, const F& f) {
    ForEachPage(end, [&](int32_t index, int32_t count, const std::byte* k, const std::byte* v) {
      for (const int32_t stop = index + count; index < stop; ++index, k += kv_->slot_bytes, v += kv_->slot_bytes) f(index, k, v);
    });
  }

 private:
  int64_t Offset() const { return *page_ * kv_->page_bytes + slot_ * kv_->slot_bytes; }

  const HeadKv* kv_;
  int32_t index_, slot_;
  const int32_t* page_;
};

}  // namespace
}  // namespace coppice::attention::cpu
