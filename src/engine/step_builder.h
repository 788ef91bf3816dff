// What all who run steps on a cache and a runner have in common: rows of a branch, the sampling slot that goes with it (they have
// the same number), and the launch. Layer: engine.
#pragma once

#include <cstdint>
#include <span>

#include "cache/kv_cache.h"
#include "engine/request_state.h"
#include "runner/runner.h"
#include "runner/step_batch.h"

namespace coppice {

// Adds a row: a token of the branch at a kv index that the branch was grown past.
inline void AppendRow(const KvCache& cache, BranchId branch, int32_t kv_index, int32_t position, int32_t token, StepBatch* step) {
  step->token_ids.push_back(token);
  step->positions.push_back(position);
  step->slot_mapping.push_back(cache.SlotOf(branch, kv_index));
}

// The slot of a branch that a sequence was admitted to: its parameters and what it has generated so far.
void SetSlot(const Sequence& sequence, BranchId branch, StepBatch* step);
// Tells the slot what the sequence has generated since `*told` tokens were told, where penalties look at it; what is under way is
// draw `sequence.draw` of step `before`.
inline void TellSlot(const Sequence& sequence, BranchId branch, int64_t before, int32_t* told, StepBatch* step) {
  if (!sequence.request->has_penalties) return;
  const int32_t known = static_cast<int32_t>(sequence.generated.size());
  if (*told < known) {
    const auto news = std::span(sequence.generated).subspan(*told);
    step->slot_edits.push_back({.kind = SlotEdit::Kind::kAdd,
                                .slot = branch,
                                .token_begin = static_cast<int32_t>(step->history.size()),
                                .token_count = static_cast<int32_t>(news.size())});
    step->history.insert(step->history.end(), news.begin(), news.end());
    *told = known;
  }
  if (sequence.draws_under_way > 0 && *told == known) {
    step->slot_edits.push_back(
        {.kind = SlotEdit::Kind::kAddDraw, .slot = branch, .draw = {.step = before, .index = sequence.draw}});
    *told = known + 1;
  }
}
inline void ForkSlot(BranchId from, BranchId to, StepBatch* step) {
  step->slot_edits.push_back({.kind = SlotEdit::Kind::kFork, .slot = to, .index = from});
}
inline void FreeSlot(BranchId branch, StepBatch* step) {
  step->slot_edits.push_back({.kind = SlotEdit::Kind::kFree, .slot = branch});
}

// Launches the step whose queries the cache was given, with the cache's copies. The batch's edits are done then, and forgotten. The
// caller, once it has kept the ticket, tells the cache (StepLaunched).
Result<StepTicket> LaunchStep(Runner* runner, KvCache* cache, std::span<const uint64_t> tree_masks, StepBatch* step);
// Does the edits that wait for a step, now.
Status FlushEdits(Runner* runner, KvCache* cache, StepBatch* step);

}  // namespace coppice
