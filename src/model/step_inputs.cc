#include "model/step_inputs.h"

#include <cstring>
#include <string>

#include "core/check.h"

namespace coppice {

Result<std::unique_ptr<StepInputs>> StepInputs::Create(Device* device, const Limits& limits) {
  if (limits.max_tokens < 1 || limits.max_logit_rows < 1)
    return InvalidArgument("max_tokens is " + std::to_string(limits.max_tokens) + " and max_logit_rows " +
                           std::to_string(limits.max_logit_rows) + "; expected at least 1 each");
  std::unique_ptr<StepInputs> inputs(new StepInputs(device, limits));
  const size_t bytes = limits.max_tokens * (sizeof(int64_t) + 2 * sizeof(int32_t)) + limits.max_logit_rows * sizeof(int32_t);
  COPPICE_ASSIGN_OR_RETURN(inputs->memory_, device->Allocate(bytes));
  for (Staging& staging : inputs->staging_) {
    COPPICE_ASSIGN_OR_RETURN(staging.memory, device->Allocate(bytes, MemoryKind::kHostPinned));
    COPPICE_ASSIGN_OR_RETURN(staging.copied, device->CreateEvent());
  }
  return inputs;
}

Result<DeviceBatch> StepInputs::Upload(const ForwardBatch& batch, Stream stream) {
  COPPICE_RETURN_IF_ERROR(Check(batch));
  Staging& staging = staging_[next_];
  next_ = (next_ + 1) % staging_.size();
  COPPICE_RETURN_IF_ERROR(device_->Synchronize(*staging.copied));
  // Arrays lie one behind the other, so that one copy brings them all; where, depends on their sizes alone.
  size_t offset = 0;
  const auto place = [&]<class T>(std::span<const T> values, DeviceSpan<const T>* to) {
    if (!values.empty()) std::memcpy(staging.memory.data() + offset, values.data(), values.size_bytes());
    *to = {reinterpret_cast<const T*>(memory_.data() + offset), static_cast<int64_t>(values.size())};
    offset += values.size_bytes();
  };
  DeviceBatch uploaded;
  place(batch.slot_mapping, &uploaded.slot_mapping);  // the widest elements first
  token_ids_ = {reinterpret_cast<int32_t*>(memory_.data() + offset), static_cast<int64_t>(batch.token_ids.size())};
  place(batch.token_ids, &uploaded.token_ids);
  place(batch.positions, &uploaded.positions);
  place(batch.logit_rows, &uploaded.logit_rows);
  COPPICE_RETURN_IF_ERROR(device_->Copy(memory_.data(), staging.memory.data(), offset, stream));
  COPPICE_RETURN_IF_ERROR(device_->Record(*staging.copied, stream));
  return uploaded;
}

Status StepInputs::Check(const ForwardBatch& batch) const {
  const size_t tokens = batch.token_ids.size();
  if (tokens == 0 || tokens > static_cast<size_t>(limits_.max_tokens))
    return OutOfRange("a batch has " + std::to_string(tokens) + " tokens; expected 1 to " + std::to_string(limits_.max_tokens) +
                      " (max_tokens)");
  if (batch.positions.size() != tokens || batch.slot_mapping.size() != tokens)
    return InvalidArgument("a batch of " + std::to_string(tokens) + " tokens has " + std::to_string(batch.positions.size()) +
                           " positions and " + std::to_string(batch.slot_mapping.size()) + " slots; expected one each per token");
  if (batch.logit_rows.size() > static_cast<size_t>(limits_.max_logit_rows))
    return OutOfRange("a batch asks for " + std::to_string(batch.logit_rows.size()) + " rows of logits; expected at most " +
                      std::to_string(limits_.max_logit_rows) + " (max_logit_rows)");
  for (size_t i = 0; i < tokens; ++i) {
    if (batch.token_ids[i] < 0 || batch.token_ids[i] >= limits_.vocab_size)
      return OutOfRange("token " + std::to_string(i) + " of a batch is " + std::to_string(batch.token_ids[i]) +
                        "; the model's ids are 0 to " + std::to_string(limits_.vocab_size - 1));
    if (batch.positions[i] < 0 || batch.positions[i] >= limits_.max_position)
      return OutOfRange("token " + std::to_string(i) + " of a batch has position " + std::to_string(batch.positions[i]) +
                        "; the model's are 0 to " + std::to_string(limits_.max_position - 1));
    if (batch.slot_mapping[i] >= limits_.num_slots)
      return OutOfRange("token " + std::to_string(i) + " of a batch goes to slot " + std::to_string(batch.slot_mapping[i]) +
                        "; the KV pool has " + std::to_string(limits_.num_slots));
  }
  for (const int32_t row : batch.logit_rows) {
    if (row < 0 || row >= static_cast<int64_t>(tokens))
      return OutOfRange("logits are asked of row " + std::to_string(row) + " of a batch of " + std::to_string(tokens) + " tokens");
  }
  return OkStatus();
}

}  // namespace coppice
