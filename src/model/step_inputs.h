// One step's inputs on their way from host to device memory, at addresses that do not change.
// Layer: model.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "coppice/core/status.h"
#include "core/device.h"
#include "core/device_tensor.h"

namespace coppice {

// One step's tokens, in host memory; the queries of a branch are consecutive and in the order of the forest's branch_query_begin.
struct ForwardBatch {
  std::span<const int32_t> token_ids;     // [T]
  std::span<const int32_t> positions;     // [T] rotary position of each token
  std::span<const int64_t> slot_mapping;  // [T] page * page_size + slot that receives the token's K and V; negative: none
  std::span<const int32_t> logit_rows;    // [R] rows whose logits are wanted
};

// The same in device memory.
struct DeviceBatch {
  DeviceSpan<const int32_t> token_ids, positions;
  DeviceSpan<const int64_t> slot_mapping;
  DeviceSpan<const int32_t> logit_rows;
};

// Thread-compatible.
class StepInputs {
 public:
  struct Limits {
    int32_t max_tokens = 0, max_logit_rows = 0;
    int32_t vocab_size = 0, max_position = 0;
    int64_t num_slots = 0;  // of the KV pool
  };
  static Result<std::unique_ptr<StepInputs>> Create(Device* device, const Limits& limits);  // device outlives the result

  // Copies the batch, in stream order; valid until the next call's work on the same stream. The host's memory is free when it
  // returns. OUT_OF_RANGE or INVALID_ARGUMENT names what is outside the limits.
  Result<DeviceBatch> Upload(const ForwardBatch& batch, Stream stream);
  // The token ids of the last upload, for those that only the device knows.
  DeviceSpan<int32_t> token_ids() const { return token_ids_; }

 private:
  StepInputs(Device* device, const Limits& limits) : device_(device), limits_(limits) {}
  Status Check(const ForwardBatch& batch) const;

  Device* const device_;
  const Limits limits_;
  DeviceMemory memory_;
  DeviceSpan<int32_t> token_ids_;
  // Used in turn: one is written while the other may still be read by the copies of the step before.
  struct Staging {
    DeviceMemory memory;
    std::unique_ptr<Event> copied;
  };
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
};

}  // namespace coppice
