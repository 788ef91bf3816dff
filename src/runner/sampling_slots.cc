#include "runner/sampling_slots.h"

#include <utility>

#include "core/check.h"

namespace coppice {

void SamplingSlots::Edit(const StepBatch& batch, std::span<const TokenDraw> draws) {
  for (const SlotEdit& edit : batch.slot_edits) {
    SamplingSlot& slot = At(edit.slot);
    const auto tokens = std::span(batch.history).subspan(edit.token_begin, edit.token_count);
    COPPICE_CHECK(slot.in_use || edit.kind == SlotEdit::Kind::kSet || edit.kind == SlotEdit::Kind::kFork);
    switch (edit.kind) {
      case SlotEdit::Kind::kSet: {
        slot = {.in_use = true};
        slot.sampling = batch.parameters[edit.index];
        if (edit.num_prompt > 0) {
          auto prompt = std::make_shared<TokenCounts>();
          for (const int32_t token : tokens.first(edit.num_prompt)) prompt->Add(token);
          slot.prompt = std::move(prompt);
        }
        for (const int32_t token : tokens.subspan(edit.num_prompt)) slot.generated.Add(token, slot.prompt.get());
        break;
      }
      case SlotEdit::Kind::kAdd:
        for (const int32_t token : tokens) slot.generated.Add(token, slot.prompt.get());
        break;
      case SlotEdit::Kind::kAddDraw:
        if (const int32_t token = draws[edit.draw.index].token; token >= 0) slot.generated.Add(token, slot.prompt.get());
        break;
      case SlotEdit::Kind::kFork: slot = (*this)[edit.index]; break;
      case SlotEdit::Kind::kFree: slot = {}; break;
    }
  }
}

SamplingSlot& SamplingSlots::At(int32_t slot) {
  COPPICE_CHECK(slot >= 0);
  if (static_cast<size_t>(slot) >= slots_.size()) slots_.resize(slot + 1);
  return slots_[slot];
}

const SamplingSlot& SamplingSlots::operator[](int32_t slot) const {
  COPPICE_CHECK(static_cast<size_t>(slot) < slots_.size() && slots_[slot].in_use);
  return slots_[slot];
}

}  // namespace coppice
