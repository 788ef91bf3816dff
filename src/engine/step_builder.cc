#include "engine/step_builder.h"

#include "core/check.h"

namespace coppice {

void SetSlot(const Sequence& sequence, BranchId branch, StepBatch* step) {
  const RequestState& request = *sequence.request;
  SlotEdit edit{.kind = SlotEdit::Kind::kSet,
                .slot = branch,
                .index = static_cast<int32_t>(step->parameters.size()),
                .token_begin = static_cast<int32_t>(step->history.size())};
  SlotSampling& sampling = step->parameters.emplace_back();
  sampling.params = request.params.sampling;
  if (request.params.min_tokens > 0) sampling.end_ids = *request.end_ids;
  if (request.has_penalties) {
    if (sampling.params.repetition_penalty != 1) {
      step->history.insert(step->history.end(), request.params.prompt_ids.begin(), request.params.prompt_ids.end());
      edit.num_prompt = request.prompt_length();
    }
    step->history.insert(step->history.end(), sequence.generated.begin(), sequence.generated.end());
    edit.token_count = static_cast<int32_t>(step->history.size()) - edit.token_begin;
  }
  step->slot_edits.push_back(edit);
}

Result<StepTicket> LaunchStep(Runner* runner, KvCache* cache, std::span<const uint64_t> tree_masks, StepBatch* step) {
  attention::PrefixForestView forest = cache->EndStep();
  forest.query_tree_mask = tree_masks;
  const auto copies = cache->pending_copies();
  step->copies.assign(copies.begin(), copies.end());
  cache->ClearPendingCopies();
  Result<StepTicket> ticket = runner->Launch(*step, forest);
  step->ClearEdits();
  return ticket;
}

Status FlushEdits(Runner* runner, KvCache* cache, StepBatch* step) {
  if (!step->has_edits() && cache->pending_copies().empty()) return OkStatus();
  step->ClearRows();
  cache->BeginStep();
  COPPICE_ASSIGN_OR_RETURN(const StepTicket ticket, LaunchStep(runner, cache, {}, step));
  const Status waited = runner->Wait(ticket).status();
  cache->StepLaunched();
  return waited;
}

}  // namespace coppice
