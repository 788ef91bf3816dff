#include "engine/constraint_masks.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace coppice {

void ConstraintMasks::Fill(ScheduledBatch* batch) {
  constrained_.clear();
  StepBatch& step = batch->step;
  for (const ScheduledBatch::Entry& entry : batch->entries) {
    if (entry.num_draws == 0 || !entry.sequence->request->has_constraint) continue;
    const auto mask = static_cast<int32_t>(constrained_.size());
    for (int32_t i = 0; i < entry.num_draws; ++i) step.draws[entry.first_draw + i].mask = mask;
    constrained_.push_back(&entry);
  }
  if (constrained_.empty()) return;
  const auto words = static_cast<size_t>(MaskWords(vocab_size_));
  step.masks.resize(constrained_.size() * words);
  batch->masks.resize(constrained_.size());
  executor_->ParallelFor(static_cast<int64_t>(constrained_.size()), [&](int64_t m, int) {
    const ScheduledBatch::Entry& entry = *constrained_[m];
    const std::span<uint32_t> mask = std::span(step.masks).subspan(m * words, words);
    // Where samples begin nobody has said anything, so the first one's state is that of all.
    const Result<bool> may_end = entry.sequence->constraint->FillMask(mask);
    batch->masks[m] = {.may_end = may_end.ok() && *may_end, .status = may_end.status()};
    if (!may_end.ok()) std::ranges::fill(mask, 0u);
    if (!batch->masks[m].may_end) return;
    for (const int32_t id : *entry.sequence->request->end_ids) mask[id / 32] |= uint32_t{1} << id % 32;
  });
}

}  // namespace coppice
