// Translates a plan and the forest's live arrays into the form that the kernel reads (plan_device.h): items cut into blocks of at
// most kDenseRows rows, tasks laid out so that blocks which read the same KV run side by side, states and tickets resolved per member.
// Host memory only; plan_executor.cc copies what changed. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/plan_device.h"
#include "coppice/attention.h"

namespace coppice::attention::cuda {

// Byte offsets of the arrays in one block of memory, the same on host and device, and how much each may hold.
struct PlanLayout {
  PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int stream_warps);

  int64_t max_pieces;                          // by which stream items may be cut further
  int64_t max_items, max_members, max_tasks, max_contributions, max_states;
  size_t header, dense_tasks, stream_tasks, items, members, merge_sets, contributions, branches, page_indices, tree_mask;
  size_t bytes;
};

// Writes the image of a plan. Allocates in its constructor only.
//
// A planner's worker is an SM, and a stream tile is one warp's: stream items are cut along KV until every warp has several, with states
// of their own. Live items keep their open end in the last piece.
class PlanTranslator {
 public:
  // stream_warps: how many stream tasks run at the same moment.
  PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int stream_warps);

  const PlanLayout& layout() const { return layout_; }
  // RESOURCE_EXHAUSTED if the plan exceeds the sizes given at creation.
  Status TranslatePlan(const PlanView& plan, const PrefixForestView& forest, std::byte* image);
  // Branches and draft masks; page rows are copied by the caller.
  void TranslateLengths(const PrefixForestView& forest, std::byte* image) const;

  int64_t num_items() const { return num_items_; }
  int64_t num_members() const { return num_members_; }
  int64_t num_contributions() const { return num_contributions_; }
  int64_t num_dense_tasks() const { return num_dense_; }
  int64_t num_stream_tasks() const { return num_stream_; }

 private:
  // How a plan item is run.
  struct Pieces {
    int32_t count = 1, tokens = 0;  // along KV; all but the last of `tokens` tokens
    int32_t state_begin = 0;        // count > 1: of its first piece
    int32_t rows = 0;
  };
  int32_t RowsOf(const MergeSet& set) const { return set.query_count * spec_.group_size(); }
  int32_t EndOf(const WorkItem& item, const PrefixForestView& forest) const;
  void CutStreamItems(const PlanView& plan, const PrefixForestView& forest);
  Status EmitContributions(const PlanView& plan, std::byte* image);
  Status EmitItem(const PlanView& plan, const PrefixForestView& forest, int32_t item, std::byte* image);
  void EmitTasks(std::byte* image);

  AttentionSpec spec_;
  PlanSizes sizes_;
  PlanLayout layout_;
  int stream_warps_;
  int64_t num_items_ = 0, num_members_ = 0, num_contributions_ = 0, num_dense_ = 0, num_stream_ = 0;
  std::vector<Pieces> pieces_;     // [plan item]
  std::vector<int32_t> arrivals_;  // [merge set]
};

}  // namespace coppice::attention::cuda
