// How the ranges of a step are cut for SMs and warps: which SMs compute, and how long the pieces of each kind are. The lowering of
// a plan cuts by it, and so does what predicts a step that is not planned yet (step_pricer). Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/kv_cuts.h"
#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/sm_partition.h"
#include "attention/cuda/lower/step_ranges.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

struct StepCuts {
  SmSplit split;
  StreamCuts stream;
};

// Allocates in its constructor only.
class StepCutter {
 public:
  StepCutter(const AttentionSpec& spec, int32_t page_size, int num_sms, int32_t max_items)
      : spec_(spec), page_size_(page_size), num_sms_(num_sms), partition_(num_sms, spec.num_kv_heads, max_items) {}

  // Whether plans may have overlapped tiles.
  bool HasOverlap(const SmCosts& costs) const { return HasOverlappedTiles(costs.path(), spec_, page_size_); }
  // most_states: partial states that dense pieces may have. merges: as for ChooseStreamCuts.
  StepCuts Choose(std::span<const QueuedItem> items, const std::function<bool()>& merges, int64_t most_states,
                  const SmCosts& costs);

 private:
  AttentionSpec spec_;
  int32_t page_size_;
  int num_sms_;
  SmPartition partition_;
};

// Appends the ends of all pieces of a range but the last one, which is open. most: pieces.
void CutRange(const QueuedItem& item, const StepCuts& cuts, int64_t most, const SmCosts& costs, std::vector<int32_t>& ends);

}  // namespace coppice::attention::cuda
