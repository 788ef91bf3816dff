// Ownership of pages as a value, so that no owner counts by hand: a list of pages, each with a reference of the list's own, which
// goes with the list; and with a use, where a running request needs the list. Layer: cache.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "cache/page_pool.h"
#include "core/check.h"

namespace coppice {

// Thread-compatible. Dropping takes no memory.
class PageRefs {
 public:
  PageRefs() = default;
  // `pool` outlives the list.
  explicit PageRefs(PagePool* pool) : pool_(pool) {}
  // Takes over a reference to each of `pages`.
  PageRefs(PagePool* pool, std::vector<PageId> pages) : pool_(pool), ids_(std::move(pages)) {}
  PageRefs(PageRefs&& other) noexcept { Swap(&other); }
  PageRefs& operator=(PageRefs&& other) noexcept {
    PageRefs taken(std::move(other));
    Swap(&taken);
    return *this;
  }
  ~PageRefs() { DropFrom(0); }

  std::span<const PageId> ids() const { return ids_; }
  size_t size() const { return ids_.size(); }
  bool empty() const { return ids_.empty(); }
  PageId operator[](size_t i) const { return ids_[i]; }
  PageId front() const { return ids_.front(); }
  PageId back() const { return ids_.back(); }

  // Takes over a reference, such as a new page's.
  void Adopt(PageId page) {
    ids_.push_back(page);
    Use({&page, 1});
  }
  // Adds a reference of its own to each of `pages`.
  void Share(std::span<const PageId> pages) {
    ids_.insert(ids_.end(), pages.begin(), pages.end());
    for (const PageId page : pages) pool_->AddReference(page);
    Use(pages);
  }
  // Takes over what the other list has. REQUIRES: that one is not in use.
  void Append(PageRefs other) {
    COPPICE_DCHECK(!other.in_use_);
    ids_.insert(ids_.end(), other.ids_.begin(), other.ids_.end());
    Use(other.ids_);
    other.ids_.clear();
  }
  // Takes over the first `count` of the other list.
  void AppendFrontOf(PageRefs* other, size_t count) {
    const auto front = std::span<const PageId>(other->ids_).first(count);
    ids_.insert(ids_.end(), front.begin(), front.end());
    Use(front);
    if (other->in_use_) {
      for (const PageId page : front) pool_->DropUse(page);
    }
    other->ids_.erase(other->ids_.begin(), other->ids_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  // Drops the first `count`.
  void DropFront(size_t count) {
    Drop(std::span(ids_).first(count));
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  // Drops all but the first `begin`.
  void DropFrom(size_t begin) noexcept {
    Drop(std::span(ids_).subspan(begin));
    ids_.resize(begin);
  }
  // Whether a running request needs the pages, and those that come.
  void SetInUse(bool in_use) {
    if (in_use == in_use_) return;
    in_use_ = in_use;
    for (const PageId page : ids_) in_use ? pool_->AddUse(page) : pool_->DropUse(page);
  }

 private:
  void Swap(PageRefs* other) {
    std::swap(pool_, other->pool_);
    ids_.swap(other->ids_);
    std::swap(in_use_, other->in_use_);
  }
  void Use(std::span<const PageId> pages) {
    if (!in_use_) return;
    for (const PageId page : pages) pool_->AddUse(page);
  }
  void Drop(std::span<const PageId> pages) {
    if (in_use_) {
      for (const PageId page : pages) pool_->DropUse(page);
    }
    for (const PageId page : pages) pool_->DropReference(page);
  }

  PagePool* pool_ = nullptr;
  std::vector<PageId> ids_;
  bool in_use_ = false;
};

}  // namespace coppice
