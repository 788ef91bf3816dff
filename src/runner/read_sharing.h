// Which reads of KV a plan really shares, by branch: what each saved, and how many samples a read was for.
// Layer: runner. Counts what the plan says; what could have been shared and was not counts nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/work_list.h"
#include "coppice/attention/attention.h"
#include "runner/runner.h"

namespace coppice {

// Of one group of layers. Thread-compatible.
class ReadSharing {
 public:
  // Of the plan's last Update over `forest`, with its Stats: O(items and members) where that replanned or a window moved, else
  // nothing is done. `num_layers` attend by the plan.
  void Count(const attention::AttentionPlan& plan, const attention::PlanStats& stats, const attention::PrefixForestView& forest,
             int32_t num_layers);

  // Rows that read some of their KV together with rows of another branch.
  int32_t grouped_rows() const { return grouped_rows_; }
  // By branch slot; empty where nothing is shared. Keeps its place over the next Count, not over the one after it: a step that is
  // under way is still told of while the next one is planned.
  std::span<const BranchReads> branches() const { return branches_; }

 private:
  void CountItem(const attention::PlanView& view, const attention::WorkItem& item, int64_t tokens);
  // Distinct branches of an item's members, in branches_of_item_.
  void FindBranches(const attention::PlanView& view, std::span<const int32_t> members);
  void Bound(int64_t bytes_saved);

  int64_t counted_at_ = -1;  // PlanStats::updates_replanned
  int32_t grouped_rows_ = 0;
  int64_t bytes_per_token_ = 0, bytes_claimed_ = 0;  // claimed: by all branches
  std::vector<uint8_t> grouped_;                     // by merge set
  std::vector<int32_t> seen_by_;                     // by branch: the item that saw it last, counted from 1
  std::vector<int32_t> branches_of_item_;
  int32_t items_seen_ = 0;
  std::vector<BranchReads> buffers_[2];
  int32_t buffer_ = 0;  // the one in use
  std::span<const BranchReads> branches_;
};

}  // namespace coppice
