// The state of sampling on the host: for each slot the parameters, and the counts that penalties look at. A GPU's runner keeps such
// state in the device's memory; both follow the same edits. Layer: runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runner/runner.h"
#include "runner/step_batch.h"
#include "runner/token_counts.h"

namespace coppice {

struct SamplingSlot {
  SlotSampling sampling;
  std::shared_ptr<const TokenCounts> prompt;  // the same for all forks; null: the parameters do not look at it
  TokenCounts generated;
  bool in_use = false;
};

// Thread-compatible.
class SamplingSlots {
 public:
  // Makes a batch's changes. `draws` are those of the step before.
  void Edit(const StepBatch& batch, std::span<const TokenDraw> draws);
  // REQUIRES: in use.
  const SamplingSlot& operator[](int32_t slot) const;

 private:
  SamplingSlot& At(int32_t slot);

  std::vector<SamplingSlot> slots_;
};

}  // namespace coppice
