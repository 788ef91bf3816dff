// Page rows by revision. Layer: attention/cuda.
#include "attention/cuda/page_rows.h"

#include <algorithm>
#include <iterator>

#include "attention/plan_units.h"

namespace coppice::attention::cuda {
namespace {

constexpr int32_t kLongestPatched = 4;  // entries of one branch; more are a copy of their own
constexpr int32_t kCopiedGap = 8192;    // unused entries between rows that are copied with them: 32 KB take less than another call

}  // namespace

PageRows::PageRows(const PlanCapacity& capacity)
    : max_found_(2 * capacity.max_branches),
      pages_(capacity.max_page_slots),
      used_(capacity.max_branches),
      lacks_(std::max(capacity.device_images, 1)) {
  // An image is written when as many changes were found as there are images.
  found_.reserve(max_found_);
  found_runs_.reserve(capacity.max_branches);
  for (Lacks& lacks : lacks_) {
    lacks.entries.reserve(max_patches());
    lacks.runs.reserve(capacity.max_branches * lacks_.size());
  }
  patches_.reserve(max_patches());
  runs_.reserve(capacity.max_branches * lacks_.size());
}

int32_t PageRows::Used(const PrefixForestView& forest, size_t branch) {
  if (forest.branch_node[branch] == kFreeSlot) return 0;
  const auto pages = CeilDiv(forest.branch_kv_len[branch], forest.page_size);
  return std::clamp(pages, 0, forest.branch_page_capacity[branch]);
}

void PageRows::FindChanges(const PrefixForestView& forest) {
  found_.clear();
  found_runs_.clear();
  const bool same = known_ && forest.version == version_;
  const bool named = known_ && forest.changed_since != 0 && forest.changed_since <= version_;
  const auto branches = static_cast<int32_t>(forest.branch_node.size());
  if (!same) std::ranges::fill(std::span(used_).subspan(branches), 0);
  if (!same && named) {
    for (const int32_t b : forest.changed_branches) {
      if (b >= 0 && b < branches) used_[b] = 0;
    }
  }
  for (int32_t b = 0; b < branches; ++b) {
    const int32_t used = Used(forest, b);
    if (same || named) {
      if (used > used_[b]) Add(forest, b, used_[b], used);
    } else if (used > 0) {
      const int32_t begin = forest.branch_page_begin[b];
      const auto wanted = forest.page_indices.subspan(begin, used);
      if (!known_ || !std::ranges::equal(wanted, std::span(pages_).subspan(begin, used))) Add(forest, b, 0, used);
    }
    used_[b] = used;
  }
  known_ = true;
  version_ = forest.version;
  for (Lacks& lacks : lacks_) {
    if (lacks.all) continue;
    lacks.entries.insert(lacks.entries.end(), found_.begin(), found_.end());
    lacks.runs.insert(lacks.runs.end(), found_runs_.begin(), found_runs_.end());
  }
}

void PageRows::Add(const PrefixForestView& forest, int32_t branch, int32_t from, int32_t to) {
  const int32_t begin = forest.branch_page_begin[branch] + from, end = begin + to - from;
  std::ranges::copy(forest.page_indices.subspan(begin, end - begin), pages_.begin() + begin);
  if (to - from <= kLongestPatched && std::ssize(found_) + (to - from) <= max_found_) {
    for (int32_t i = begin; i < end; ++i) found_.push_back(i);
  } else {
    AddRun(found_runs_, {.begin = begin, .end = end});
  }
}

void PageRows::AddRun(std::vector<PageRun>& runs, PageRun run) {
  if (!runs.empty() && run.begin >= runs.back().end && run.begin - runs.back().end <= kCopiedGap) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

void PageRows::Take(const PrefixForestView& forest, int image) {
  Lacks& lacks = lacks_[image];
  patches_.clear();
  runs_.clear();
  if (lacks.all) {
    for (size_t b = 0; b < forest.branch_node.size(); ++b) {
      const int32_t begin = forest.branch_page_begin[b];
      if (used_[b] > 0) AddRun(runs_, {.begin = begin, .end = begin + used_[b]});
    }
  } else {
    for (const int32_t at : lacks.entries) patches_.push_back({.at = at, .page = pages_[at]});
    std::ranges::copy(lacks.runs, std::back_inserter(runs_));
  }
  lacks.all = false;
  lacks.entries.clear();
  lacks.runs.clear();
}

}  // namespace coppice::attention::cuda
