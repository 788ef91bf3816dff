// Totals of a plan's items at each of its merge sets: contributions, pieces counted one by one, the tickets that complete
// the set, and where its contributions stand. Kept from plan to plan: only sets whose items changed are added up again.
// Layer: attention/cuda.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/lower/plan_places.h"
#include "attention/work_list.h"

namespace coppice::attention::cuda {

struct SetTotal {
  int32_t begin = 0, count = 0;  // contributions in the image
  int32_t arrivals = 0;          // one for each warpgroup that holds rows of it, in every piece; a stream tile is one warp
  bool operator==(const SetTotal&) const = default;
};

// Allocates in its constructor only.
class SetTotals {
 public:
  explicit SetTotals(const PlanSizes& sizes)
      : parts_(sizes.max_contributions), totals_(sizes.max_merge_sets), open_(sizes.max_merge_sets) {
    open_sets_.reserve(sizes.max_merge_sets);
    changed_.reserve(sizes.max_merge_sets);
  }

  const SetTotal& operator[](int32_t set) const { return totals_[set]; }
  // The set has other contributions: it is added up again, and listed as changed.
  void Change(int32_t set) { Open(set, kChanged); }
  // An item's part of a set. REQUIRES: one of its contributions.
  void Put(const PlanView& plan, int32_t item, int32_t set, int32_t pieces, int32_t warpgroups);
  // Adds sets up where a part changed, and finds all places. REQUIRES: of changed sets, all parts were put again.
  void Place(const PlanView& plan, PlanPlaces& places);
  // Sets whose totals differ from those before, and those of Change.
  std::span<const int32_t> changed() const { return changed_; }
  int64_t num_contributions() const { return num_contributions_; }

 private:
  enum : uint8_t { kClosed, kOpen, kChanged };
  // An item's, all its pieces together.
  struct Part {
    int32_t pieces = 0, arrivals = 0;
    bool operator==(const Part&) const = default;
  };
  void Open(int32_t set, uint8_t how) {
    if (open_[set] == kClosed) open_sets_.push_back(set);
    open_[set] = std::max(open_[set], how);
  }

  std::vector<Part> parts_;         // [contribution of the plan]
  std::vector<SetTotal> totals_;    // [set]
  std::vector<uint8_t> open_;       // [set] is to be added up
  std::vector<int32_t> open_sets_;  // those
  std::vector<int32_t> changed_;
  int64_t num_contributions_ = 0;
};

}  // namespace coppice::attention::cuda
