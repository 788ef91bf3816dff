#include "runner/host_runner.h"

#include <utility>

#include "core/check.h"
#include "core/exhaustion.h"
#include "runner/phase_timer.h"

namespace coppice {
HostRunner::HostRunner(Parts parts)
    : info_(std::move(parts.info)),
      plans_(std::move(parts.plans)),
      stream_(parts.stream),
      sampler_(parts.executor, info_.model.vocab_size, std::move(parts.distributions)) {}

Result<StepTicket> HostRunner::Launch(const StepBatch& batch, const attention::PrefixForestView& forest) {
  RingStep& step = steps_.Prepare(batch);
  EditSlots(batch, &step);
  const StepTicket ticket = steps_.Enter(step);  // what throws from here on is the step's failure, which Wait returns
  step.status = CatchExhaustion("running a step", [&] { return Run(batch, forest, &step); });
  if (!step.status.ok()) step.sampled.Reset(batch);
  return ticket;
}

Result<StepResult> HostRunner::Wait(StepTicket ticket) { return ResultOf(&steps_.Take(ticket)); }

void HostRunner::EditSlots(const StepBatch& batch, RingStep* step) {
  const PhaseTimer phase("edit", &step->stats.edit_seconds);
  slots_.Edit(batch, steps_.Before(*step).sampled.draws);
}

Status HostRunner::Run(const StepBatch& batch, const attention::PrefixForestView& forest, RingStep* step) {
  StepStats& stats = step->stats;
  PhaseTimer phase("edit", &stats.edit_seconds);
  COPPICE_RETURN_IF_ERROR(MoveSlots(batch.moves));
  COPPICE_RETURN_IF_ERROR(CopyPages(batch.copies));
  if (batch.num_rows() == 0) return OkStatus();
  if (steps_.StandsOnFailure(*step)) return Internal("the step before it failed");
  phase.Next("plan", &stats.plan_seconds);
  COPPICE_RETURN_IF_ERROR(Prepare(forest, &stats));
  phase.Set("kv_bytes_read", stats.kv_bytes_read);
  phase.Next("forward", &stats.forward_seconds);
  phase.Set("rows", batch.num_rows());
  if (!batch.drawn_tokens.empty()) FillTokens(batch, steps_.Before(*step), &token_ids_);
  const ForwardBatch rows{.token_ids = batch.drawn_tokens.empty() ? batch.token_ids : token_ids_,
                          .positions = batch.positions,
                          .slot_mapping = batch.slot_mapping,
                          .logit_rows = sampler_.FindLogitRows(batch)};
  COPPICE_ASSIGN_OR_RETURN(const MatrixView<const float> logits, Forward(rows));
  phase.Next("sample", &stats.sample_seconds);
  phase.Set("draws", std::ssize(batch.draws));
  sampler_.Sample(logits, batch, slots_, &step->sampled);
  return OkStatus();
}

}  // namespace coppice
