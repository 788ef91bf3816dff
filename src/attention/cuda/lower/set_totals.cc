// Sums over the contributions of a set. Layer: attention/cuda.
#include "attention/cuda/lower/set_totals.h"

#include <utility>

#include "attention/cuda/plan_device.h"
#include "core/check.h"

namespace coppice::attention::cuda {

void SetTotals::Put(const PlanView& plan, int32_t item, int32_t set, int32_t pieces, int32_t warpgroups) {
  int32_t at = plan.merge_sets[set].contribution_begin;
  while (plan.contributions[at].item != item) ++at;
  const Part part{.pieces = pieces, .arrivals = pieces * warpgroups};
  if (std::exchange(parts_[at], part) != part) Open(set, kOpen);
}

void SetTotals::Place(const PlanView& plan, PlanPlaces& places) {
  changed_.clear();
  for (const int32_t set : open_sets_) {
    const MergeSet& of = plan.merge_sets[set];
    SetTotal total{.begin = totals_[set].begin};
    for (const Part& part : std::span(parts_).subspan(of.contribution_begin, of.contribution_count)) {
      total.count += part.pieces;
      total.arrivals += part.arrivals;
    }
    COPPICE_CHECK(total.count <= kMaxSetContributions);
    num_contributions_ += total.count - totals_[set].count;
    if (std::exchange(totals_[set], total) != total) open_[set] = kChanged;
  }
  // Contributions of one set move those of the sets behind it.
  for (size_t set = 0; set < plan.merge_sets.size(); ++set) {
    SetTotal& total = totals_[set];
    const int32_t begin = places.TakeContributions(plan.merge_sets[set], total.count);
    if (std::exchange(total.begin, begin) != begin) Open(static_cast<int32_t>(set), kChanged);
  }
  for (const int32_t set : open_sets_) {
    if (std::exchange(open_[set], kClosed) == kChanged) changed_.push_back(set);
  }
  open_sets_.clear();
}

}  // namespace coppice::attention::cuda
