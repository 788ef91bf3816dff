// Where the members of items and the contributions of merge sets stand in a plan's image: where the plan itself has them, which it
// edits in place, so that an item that comes or goes moves nothing else and an upload stays small. Further places of pieces stand
// behind. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/cuda/lower/plan_image.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// Allocates in its constructor only.
class PlanPlaces {
 public:
  PlanPlaces(const PlanLayout& layout, const PlanSizes& sizes)
      : max_members_(layout.max_members), max_contributions_(layout.max_contributions), member_taken_(sizes.max_members) {}

  // Forgets the places of the plan before.
  void Begin(const PlanView& plan);
  // The first of an item's members; those of its pieces follow each other.
  int32_t TakeMembers(const WorkItem& item, int32_t pieces);
  // The first of a set's contributions: so many, pieces counted one by one.
  int32_t TakeContributions(const MergeSet& set, int32_t count);

  // All places taken lie below.
  int32_t members_end() const { return members_.end; }
  int32_t contributions_end() const { return contributions_.end; }

 private:
  // The plan's places lie below `end` at first; the next one behind them is `next`.
  struct Places {
    int32_t end, next;
    explicit Places(size_t plan_end = 0);
    int32_t Take(int32_t count);
  };

  int64_t max_members_, max_contributions_;
  Places members_, contributions_;
  std::vector<uint8_t> member_taken_;  // [member of the plan] an item's first, by one: pieces that the planner cut share theirs
};

}  // namespace coppice::attention::cuda
