#include "cache/page_pool.h"

#include <algorithm>
#include <string>

#include "core/check.h"

namespace coppice {

PagePool::PagePool(int32_t num_pages, int32_t page_size)
    : page_size_(page_size), free_(num_pages), references_(num_pages), uses_(num_pages), claimed_slots_(num_pages) {
  COPPICE_CHECK(page_size >= 1 && page_size <= 256);
  Clear();
}

void PagePool::Clear() {
  free_.resize(references_.size());
  for (int32_t i = 0; i < num_pages(); ++i) free_[i] = num_pages() - 1 - i;  // low pages first: untouched memory stays untouched
  std::ranges::fill(references_, 0);
  std::ranges::fill(uses_, 0);
  num_in_use_ = 0;
}

PageId PagePool::Allocate() {
  if (free_.empty()) return kNoPage;
  const PageId page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  claimed_slots_[page] = 0;
  return page;
}

void PagePool::DropReference(PageId page) {
  COPPICE_DCHECK(references_[page] > 0);
  if (--references_[page] > 0) return;
  COPPICE_DCHECK(uses_[page] == 0);
  free_.push_back(page);
}

Status PagePool::CheckIntegrity(std::span<const int32_t> expected_references, std::span<const int32_t> expected_uses) const {
  std::vector<bool> is_free(references_.size(), false);
  for (const PageId page : free_) {
    if (page < 0 || page >= num_pages() || is_free[page])
      return Internal("page " + std::to_string(page) + " is twice in the free list");
    is_free[page] = true;
  }
  int32_t in_use = 0;
  for (int32_t page = 0; page < num_pages(); ++page) {
    const auto describe = [&](const char* what, int32_t have, int32_t expected) {
      return Internal("page " + std::to_string(page) + " has " + std::to_string(have) + " " + what + ", its owners account for " +
                      std::to_string(expected));
    };
    if (references_[page] != expected_references[page]) return describe("references", references_[page], expected_references[page]);
    if (uses_[page] != expected_uses[page]) return describe("uses", uses_[page], expected_uses[page]);
    if (is_free[page] != (references_[page] == 0))
      return describe("references but a wrong place in the free list", references_[page], 0);
    in_use += uses_[page] > 0;
  }
  if (in_use != num_in_use_) {
    return Internal("pages in use: counted " + std::to_string(in_use) + ", recorded " + std::to_string(num_in_use_));
  }
  return OkStatus();
}

}  // namespace coppice
