// A device's page rows of a forest, and those that it lacks: of a step, the entries that branches grew into; after an edit, the
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

// Of one device image of a plan, or of several written in turn (PlanCapacity::device_images). Allocates in its constructor only.
class PageRows {
 public:
  explicit PageRows(const PlanCapacity& capacity);

  // Finds what the images lack for this forest.
  void FindChanges(const PrefixForestView& forest);
  // Takes what one image lacks as copied: single entries go to patches(), longer runs to runs(). REQUIRES: the forest of the last
  // FindChanges.
  void Take(const PrefixForestView& forest, int image = 0);
  std::span<const PagePatch> patches() const { return patches_; }
  std::span<const PageRun> runs() const { return runs_; }
  // A run's entries.
  std::span<const int32_t> PagesOf(const PageRun& run) const { return std::span(pages_).subspan(run.begin, run.end - run.begin); }
  // A copy failed: the image may have anything.
  void Forget(int image) { lacks_[image].all = true; }

  // Most patches of one image at once.
  int32_t max_patches() const { return max_found_ * static_cast<int32_t>(lacks_.size()); }

 private:
  struct Lacks {
    bool all = false;
    std::vector<int32_t> entries;
    std::vector<PageRun> runs;
  };
  // Entries that a branch uses.
  static int32_t Used(const PrefixForestView& forest, size_t branch);
  void Add(const PrefixForestView& forest, int32_t branch, int32_t from, int32_t to);
  // Near runs become one: what lies between is what the images have.
  static void AddRun(std::vector<PageRun>& runs, PageRun run);

  int32_t max_found_;  // single entries of one FindChanges; those beyond are runs
  bool known_ = false;
  uint64_t version_ = 0;        // of the forest, when known
  std::vector<int32_t> pages_;  // [max_page_slots] what images have or lack
  std::vector<int32_t> used_;   // [max_branches] entries of each row in pages_
  std::vector<int32_t> found_;  // entries of the last FindChanges
  std::vector<PageRun> found_runs_;
  std::vector<Lacks> lacks_;  // [image]
  std::vector<PagePatch> patches_;
  std::vector<PageRun> runs_;
};

}  // namespace coppice::attention::cuda
