// Counts the rows of a step that read some of their KV together with rows of another sample: whether sharing really happens.
// Layer: runner.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/attention/attention.h"

namespace coppice {

// Thread-compatible.
class GroupedRows {
 public:
  // Of the plan's last Update. `replanned` is PlanStats::updates_replanned: while it stays, so does the count. O(members).
  int32_t Count(const attention::AttentionPlan& plan, int64_t replanned);

 private:
  int64_t counted_at_ = -1;
  int32_t count_ = 0;
  std::vector<uint8_t> grouped_;  // by merge set
};

}  // namespace coppice
