// Places kept, and places behind. Layer: attention/cuda.
#include "attention/cuda/lower/plan_places.h"

#include <algorithm>
#include <span>
#include <utility>

#include "attention/plan_units.h"
#include "core/check.h"

namespace coppice::attention::cuda {

PlanPlaces::Places::Places(size_t plan_end)
    : end(static_cast<int32_t>(plan_end)), next(static_cast<int32_t>(RoundUp(int64_t{end}, kPlacesUnit))) {}

int32_t PlanPlaces::Places::Take(int32_t count) {
  const int32_t begin = next;
  end = next += count;
  return begin;
}

void PlanPlaces::Begin(const PlanView& plan) {
  COPPICE_CHECK(plan.members.size() <= member_taken_.size());
  std::ranges::fill(std::span(member_taken_).first(plan.members.size()), 0);
  members_ = Places(plan.members.size());
  contributions_ = Places(plan.contributions.size());
}

int32_t PlanPlaces::TakeMembers(const WorkItem& item, int32_t pieces) {
  if (pieces == 1 && std::exchange(member_taken_[item.member_begin], uint8_t{1}) == 0) return item.member_begin;
  const int32_t begin = members_.Take(pieces * item.member_count);
  COPPICE_CHECK(members_.end <= max_members_);
  return begin;
}

int32_t PlanPlaces::TakeContributions(const MergeSet& set, int32_t count) {
  if (count <= set.contribution_count) return set.contribution_begin;
  const int32_t begin = contributions_.Take(count);
  COPPICE_CHECK(contributions_.end <= max_contributions_);
  return begin;
}

}  // namespace coppice::attention::cuda
