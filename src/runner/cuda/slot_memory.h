// The state of sampling on a GPU: parameters of each slot on the host, counts and biases in the device's tables. Follows the same
// edits as the host's SamplingSlots, but never waits for a draw: what the step before drew is counted on the device.
// Layer: runner/cuda.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "runner/cuda/slot_tables.h"
#include "runner/step_batch.h"

namespace coppice::cuda {

// Thread-compatible.
class SlotMemory {
 public:
  // A slot's parameters, and which of its tables its draws look at.
  struct Slot {
    SlotSampling sampling;
    bool has_counts = false, has_biases = false, in_use = false;
  };
  static Result<std::unique_ptr<SlotMemory>> Create(Device* device, int32_t max_slots, int32_t vocab_size);

  // Makes a batch's changes, in stream order; `drawn` are the draws of the step before, in device memory.
  Status Edit(const StepBatch& batch, const DrawnToken* drawn, Stream stream);
  // REQUIRES: in use.
  const Slot& operator[](int32_t slot) const;
  const SlotTables& tables() const { return tables_; }

 private:
  // Edits that one launch makes, in any order.
  struct Launch {
    bool whole = false;
    TableEdit::Kind kind = TableEdit::Kind::kClear;  // of whole ones
    std::vector<TableEdit> edits;
  };
  // The last launches that wrote and that read a slot; -1: none.
  struct Touched {
    int32_t written = -1, read = -1;
  };
  // Launches read their edits from here; written again when all of them have.
  struct Staging {
    DeviceMemory edits;
    std::unique_ptr<Event> read;
  };

  SlotMemory(Device* device, int32_t vocab_size) : device_(device) { tables_.vocab = vocab_size; }
  Slot& At(int32_t slot);
  void Set(const StepBatch& batch, const SlotEdit& edit);
  void Fork(const SlotEdit& edit);
  // Puts the edit into the first launch that comes after all it must follow.
  void Add(const TableEdit& edit);
  Status LaunchAll(const DrawnToken* drawn, Stream stream);

  Device* const device_;
  SlotTables tables_;
  DeviceMemory counts_, biases_;
  std::vector<Slot> slots_;
  // Of an Edit; reused.
  std::vector<Launch> launches_;
  size_t num_launches_ = 0;
  std::vector<Touched> touched_;  // by slot
  std::array<Staging, 3> staging_;
  size_t next_staging_ = 0;
};

}  // namespace coppice::cuda
