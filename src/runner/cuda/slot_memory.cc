#include "runner/cuda/slot_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"

namespace coppice::cuda {

using Kind = TableEdit::Kind;

Result<std::unique_ptr<SlotMemory>> SlotMemory::Create(Device* device, int32_t max_slots, int32_t vocab_size) {
  std::unique_ptr<SlotMemory> memory(new SlotMemory(device, vocab_size));
  const size_t entries = static_cast<size_t>(max_slots) * static_cast<size_t>(vocab_size);
  COPPICE_ASSIGN_OR_RETURN(memory->counts_, device->Allocate(entries * sizeof(uint32_t)));
  COPPICE_ASSIGN_OR_RETURN(memory->biases_, device->Allocate(entries * sizeof(float)));
  memory->tables_.counts = memory->counts_.As<uint32_t>();
  memory->tables_.biases = memory->biases_.As<float>();
  memory->slots_.resize(max_slots);
  memory->touched_.resize(max_slots);
  for (Staging& staging : memory->staging_) {
    COPPICE_ASSIGN_OR_RETURN(staging.read, device->CreateEvent());
  }
  return memory;
}

Status SlotMemory::Edit(const StepBatch& batch, const DrawnToken* drawn, Stream stream) {
  if (batch.slot_edits.empty()) return OkStatus();
  num_launches_ = 0;
  std::ranges::fill(touched_, Touched{});
  for (const SlotEdit& edit : batch.slot_edits) {
    switch (edit.kind) {
      case SlotEdit::Kind::kSet: Set(batch, edit); break;
      case SlotEdit::Kind::kAdd:
        if (!At(edit.slot).has_counts) break;
        for (const int32_t token : std::span(batch.history).subspan(edit.token_begin, edit.token_count))
          Add({.kind = Kind::kGenerated, .slot = edit.slot, .other = token});
        break;
      case SlotEdit::Kind::kAddDraw:
        if (At(edit.slot).has_counts) Add({.kind = Kind::kDrawn, .slot = edit.slot, .other = edit.draw.index});
        break;
      case SlotEdit::Kind::kFork: Fork(edit); break;
      case SlotEdit::Kind::kFree: At(edit.slot) = {}; break;
    }
  }
  return LaunchAll(drawn, stream);
}

void SlotMemory::Set(const StepBatch& batch, const SlotEdit& edit) {
  Slot& slot = slots_.at(edit.slot);
  slot = {.in_use = true};
  slot.sampling = batch.parameters[edit.index];
  slot.has_counts = HasPenalties(slot.sampling.params) || !slot.sampling.end_ids.empty();
  slot.has_biases = !slot.sampling.params.logit_bias.empty();
  if (!slot.has_counts && !slot.has_biases) return;
  Add({.kind = Kind::kClear, .slot = edit.slot});
  for (const auto& [token, bias] : slot.sampling.params.logit_bias)
    Add({.kind = Kind::kBias, .slot = edit.slot, .other = token, .bias = bias});
  for (const int32_t token : slot.sampling.end_ids) Add({.kind = Kind::kEndsSample, .slot = edit.slot, .other = token});
  const auto tokens = std::span(batch.history).subspan(edit.token_begin, edit.token_count);
  for (int32_t i = 0; i < edit.token_count; ++i)
    Add({.kind = i < edit.num_prompt ? Kind::kPrompt : Kind::kGenerated, .slot = edit.slot, .other = tokens[i]});
}

void SlotMemory::Fork(const SlotEdit& edit) {
  slots_.at(edit.slot) = At(edit.index);
  const Slot& slot = slots_[edit.slot];
  if (slot.has_counts || slot.has_biases) Add({.kind = Kind::kCopy, .slot = edit.slot, .other = edit.index});
}

void SlotMemory::Add(const TableEdit& edit) {
  const bool whole = edit.kind == Kind::kClear || edit.kind == Kind::kCopy;
  Touched& to = touched_[edit.slot];
  int32_t first = std::max(to.read, to.written) + 1;
  // Edits of entries go together in any order.
  if (!whole && to.written > to.read && !launches_[to.written].whole) first = to.written;
  if (edit.kind == Kind::kCopy) first = std::max(first, touched_[edit.other].written + 1);
  const auto takes = [&](const Launch& launch) { return launch.whole == whole && (!whole || launch.kind == edit.kind); };
  auto place = static_cast<size_t>(first);
  while (place < num_launches_ && !takes(launches_[place])) ++place;
  if (place == num_launches_) {
    if (++num_launches_ > launches_.size()) launches_.emplace_back();
    launches_[place].whole = whole;
    launches_[place].kind = edit.kind;
    launches_[place].edits.clear();
  }
  launches_[place].edits.push_back(edit);
  to.written = static_cast<int32_t>(place);
  if (edit.kind == Kind::kCopy) {
    Touched& from = touched_[edit.other];
    from.read = std::max(from.read, static_cast<int32_t>(place));
  }
}

Status SlotMemory::LaunchAll(const DrawnToken* drawn, Stream stream) {
  size_t count = 0;
  for (size_t i = 0; i < num_launches_; ++i) count += launches_[i].edits.size();
  if (count == 0) return OkStatus();
  Staging& staging = staging_[next_staging_++ % staging_.size()];
  COPPICE_RETURN_IF_ERROR(device_->Synchronize(*staging.read));
  if (staging.edits.size() < count * sizeof(TableEdit)) {
    COPPICE_ASSIGN_OR_RETURN(staging.edits, device_->Allocate(2 * count * sizeof(TableEdit), MemoryKind::kHostPinned));
  }
  const DeviceGuard guard(device_->ordinal());
  TableEdit* edits = staging.edits.As<TableEdit>();
  for (const Launch& launch : std::span(launches_).first(num_launches_)) {
    std::memcpy(edits, launch.edits.data(), launch.edits.size() * sizeof(TableEdit));
    COPPICE_RETURN_IF_ERROR(LaunchTableEdits(tables_, edits, static_cast<int32_t>(launch.edits.size()), launch.whole, drawn,
                                             static_cast<cudaStream_t>(stream)));
    edits += launch.edits.size();
  }
  return device_->Record(*staging.read, stream);
}

SlotMemory::Slot& SlotMemory::At(int32_t slot) {
  COPPICE_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size() && slots_[slot].in_use);
  return slots_[slot];
}

const SlotMemory::Slot& SlotMemory::operator[](int32_t slot) const {
  COPPICE_CHECK(static_cast<size_t>(slot) < slots_.size() && slots_[slot].in_use);
  return slots_[slot];
}

}  // namespace coppice::cuda
