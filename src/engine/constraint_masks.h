// Masks of what constrained samples may say next, made once a step is scheduled: on several threads, and beside the step under way
// where there is one. Layer: engine.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/core/executor.h"
#include "engine/scheduled_batch.h"

namespace coppice {

// Thread-compatible.
class ConstraintMasks {
 public:
  // `executor` outlives the masks.
  ConstraintMasks(Executor* executor, int32_t vocab_size) : executor_(executor), vocab_size_(vocab_size) {}

  // Gives the draws of constrained samples their masks.
  void Fill(ScheduledBatch* batch);

 private:
  Executor* executor_;
  int32_t vocab_size_;
  std::vector<const ScheduledBatch::Entry*> constrained_;  // by mask
};

}  // namespace coppice
