// Page rows by revision. Layer: attention/cuda.
#include "attention/cuda/page_rows.h"

#include <algorithm>

#include "attention/plan_units.h"

namespace coppice::attention::cuda {
namespace {

constexpr int32_t kLongestPatched = 4;  // entries of one branch; more are a copy of their own
constexpr int32_t kCopiedGap = 8192;    // unused entries between rows that are copied with them: 32 KB take less than another call

}  // namespace

PageRows::PageRows(const PlanCapacity& capacity)
    : max_patches_(2 * capacity.max_branches), device_pages_(capacity.max_page_slots), used_(capacity.max_branches) {
  patches_.reserve(max_patches_);
  runs_.reserve(capacity.max_branches);
}

int32_t PageRows::Used(const PrefixForestView& forest, size_t branch) {
  if (forest.branch_node[branch] == kFreeSlot) return 0;
  const auto pages = static_cast<int32_t>(CeilDiv(forest.branch_kv_len[branch], forest.page_size));
  return std::clamp(pages, 0, forest.branch_page_capacity[branch]);
}

void PageRows::FindChanges(const PrefixForestView& forest) {
  patches_.clear();
  runs_.clear();
  const bool same = known_ && forest.version == version_;
  const bool told = known_ && forest.changed_since != 0 && forest.changed_since <= version_;
  const auto branches = static_cast<int32_t>(forest.branch_node.size());
  if (!same) std::ranges::fill(std::span(used_).subspan(branches), 0);
  if (!same && told) {
    for (const int32_t b : forest.changed_branches) {
      if (b >= 0 && b < branches) used_[b] = 0;
    }
  }
  for (int32_t b = 0; b < branches; ++b) {
    const int32_t used = Used(forest, b);
    if (same || told) {
      if (used > used_[b]) Add(forest, b, used_[b], used);
    } else if (used > 0) {
      const int32_t begin = forest.branch_page_begin[b];
      const auto wanted = forest.page_indices.subspan(begin, used);
      if (!known_ || !std::ranges::equal(wanted, std::span(device_pages_).subspan(begin, used))) Add(forest, b, 0, used);
    }
    used_[b] = used;
  }
  known_ = true;
  version_ = forest.version;
}

void PageRows::Add(const PrefixForestView& forest, int32_t branch, int32_t from, int32_t to) {
  const int32_t begin = forest.branch_page_begin[branch] + from, end = begin + to - from;
  const auto copied = [&](int32_t first, int32_t last) {
    std::ranges::copy(forest.page_indices.subspan(first, last - first), device_pages_.begin() + first);
  };
  if (to - from <= kLongestPatched && std::ssize(patches_) + (to - from) <= max_patches_) {
    for (int32_t i = begin; i < end; ++i) patches_.push_back({.at = i, .page = forest.page_indices[i]});
    copied(begin, end);
  } else if (!runs_.empty() && begin >= runs_.back().end && begin - runs_.back().end <= kCopiedGap) {
    copied(runs_.back().end, end);
    runs_.back().end = end;
  } else {
    runs_.push_back({.begin = begin, .end = end});
    copied(begin, end);
  }
}

}  // namespace coppice::attention::cuda
