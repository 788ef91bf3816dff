// What a device has of a forest's page rows, and what it lacks: of a step, the entries that branches grew into; after an edit, the
// rows that it changed. Host code; plan_executor.cc copies. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// Entry `at` of page_indices becomes `page`.
struct PagePatch {
  int32_t at, page;
};

// Entries [begin, end) of page_indices.
struct PageRun {
  int32_t begin, end;
};

// Allocates in its constructor only.
class PageRows {
 public:
  explicit PageRows(const PlanCapacity& capacity);

  // Finds what the device lacks for this forest and takes it as copied: single entries go to patches(), longer runs to runs().
  void FindChanges(const PrefixForestView& forest);
  std::span<const PagePatch> patches() const { return patches_; }
  std::span<const PageRun> runs() const { return runs_; }
  // A copy failed: the device may have anything.
  void Forget() { version_ = 0, known_ = false; }

  // Most patches of one call: single entries beyond are runs.
  int32_t max_patches() const { return max_patches_; }

 private:
  // Entries that a branch uses.
  static int32_t Used(const PrefixForestView& forest, size_t branch);
  void Add(const PrefixForestView& forest, int32_t branch, int32_t from, int32_t to);

  int32_t max_patches_;
  bool known_ = false;
  uint64_t version_ = 0;               // of the forest, when known
  std::vector<int32_t> device_pages_;  // [max_page_slots] what the device has
  std::vector<int32_t> used_;          // [max_branches] entries of each row that the device has
  std::vector<PagePatch> patches_;
  std::vector<PageRun> runs_;
};

}  // namespace coppice::attention::cuda
