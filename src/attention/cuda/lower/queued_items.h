// The items of a plan that are run, before they are cut for SMs and warps: each gets its kind and its part of what is read from
// memory. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/step_ranges.h"
#include "attention/cuda/plan_device.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// How a plan item is run.
struct ItemPieces {
  int32_t count = 1;        // along KV
  int32_t ends_begin = 0;   // of the translator's piece ends: where all but the last end, from the item's kv_begin
  int32_t state_begin = 0;  // count > 1: of its first piece
  int32_t rows = 0;
  int32_t block_rows = kDenseRows;  // rows of a task at most; StreamRows: a stream tile's
  bool read_once = false;           // by one task, each kv head
};

// Allocates in its constructor only.
class QueuedItems {
 public:
  QueuedItems(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms);

  // Takes the queued items of a plan, in queue order. Rows are counted again of `changed` items only: all that are not as they were
  // in the plan before.
  void Collect(const PlanView& plan, std::span<const int32_t> changed, const PrefixForestView& forest, const SmCosts& costs);

  std::span<const QueuedItem> items() const { return items_; }
  ItemPieces& pieces(int32_t item) { return pieces_[item]; }
  const ItemPieces& pieces(int32_t item) const { return pieces_[item]; }
  // Rows of a merge set under one kv head.
  int32_t RowsOf(const MergeSet& set) const { return set.query_count * spec_.group_size(); }

 private:
  // Under one kv head.
  struct Rows {
    int32_t all = 0, most_of_set = 0;
    int32_t blocks = 0;  // of dense tiles
  };
  Rows CountRows(const PlanView& plan, const WorkItem& item) const;

  AttentionSpec spec_;
  int num_sms_;
  std::vector<ItemPieces> pieces_;  // [plan item]
  std::vector<Rows> rows_;          // [plan item]
  std::vector<QueuedItem> items_;
  PromptCuts prompts_;
  ReadCounts reads_;
};

}  // namespace coppice::attention::cuda
