// Which reads of KV a plan really shares, by branch: what each saved, and how many branches a read was for. Counts what the plan
// says; what could have been shared and was not counts nothing. Layer: attention, private.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// Of one plan. Allocates until it has seen the most branches and merge sets of a step.
class SharedReads {
 public:
  // Of the last Update, over `forest`: O(items and members) where that replanned or a window moved, else O(1). The branches of the
  // count before stay where they are.
  PlanReads Count(const InspectablePlan& plan, const PrefixForestView& forest);

 private:
  void CountItem(const PlanView& view, const WorkItem& item, int64_t tokens);
  // Distinct branches of an item's members, in branches_of_item_.
  void FindBranches(const PlanView& view, std::span<const int32_t> members);
  void Bound(int64_t bytes_saved);

  int64_t counted_at_ = -1;  // PlanStats::updates_replanned
  int32_t grouped_queries_ = 0;
  int64_t bytes_per_token_ = 0, bytes_claimed_ = 0;  // claimed: by all branches
  std::vector<uint8_t> grouped_;                     // by merge set
  std::vector<int32_t> seen_by_;                     // by branch: the item that saw it last, counted from 1
  std::vector<int32_t> branches_of_item_;
  int32_t items_seen_ = 0;
  std::vector<BranchReads> buffers_[2];
  int32_t buffer_ = 0;  // the one in use
};

}  // namespace coppice::attention
