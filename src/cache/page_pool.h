// Bookkeeping of a fixed set of KV pages: which are free, how many owners each has, how far each is written. Knows no tokens and
// touches no KV memory (runner/kv_pool.h does).
// Layer: cache. Paged KV as in Cascade Inference; copy-on-write as in docs/engine.md, "Pages".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

// References count owners of a page (tree nodes and private tails of branches); uses say whether a running request needs it. A page
// that is owned but not used is cached: it can be had back by evicting its owner. Thread-compatible.
class PagePool {
 public:
  // REQUIRES: num_pages >= 0, page_size in 1..256.
  PagePool(int32_t num_pages, int32_t page_size);

  int32_t page_size() const { return page_size_; }
  int32_t num_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_owned() const { return num_pages() - num_free(); }
  int32_t num_in_use() const { return num_in_use_; }

  // A page with one reference and no written slot; kNoPage when none is free. O(1).
  PageId Allocate();
  void AddReference(PageId page) { ++references_[page]; }
  // Frees the page with its last reference. REQUIRES: a reference is held; the last one only when the page is not in use.
  void DropReference(PageId page);
  int32_t references(PageId page) const { return references_[page]; }
  // All pages are free, those in use too. Takes no memory.
  void Clear();

  void AddUse(PageId page) { num_in_use_ += uses_[page]++ == 0; }
  void DropUse(PageId page) { num_in_use_ -= --uses_[page] == 0; }

  // Slots below this are written or claimed by a writer. A branch whose next token falls exactly here may write in place; any other
  // must copy the page first, since another branch's tokens lie there.
  int32_t claimed_slots(PageId page) const { return claimed_slots_[page]; }
  void set_claimed_slots(PageId page, int32_t slots) { claimed_slots_[page] = slots; }

  // INTERNAL, naming the page, unless references equal `expected_references` and uses equal `expected_uses` (both [num_pages],
  // counted by the caller from its own structures) and the free list holds each unreferenced page once. O(num_pages).
  Status CheckIntegrity(std::span<const int32_t> expected_references, std::span<const int32_t> expected_uses) const;

 private:
  int32_t page_size_;
  std::vector<PageId> free_;  // a stack: what was freed last is warm in the cache
  std::vector<int32_t> references_, uses_, claimed_slots_;
  int32_t num_in_use_ = 0;
};

}  // namespace coppice
