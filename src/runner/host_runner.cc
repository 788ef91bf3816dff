#include "runner/host_runner.h"

#include <algorithm>
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
  COPPICE_CHECK(launched_ - waited_ < 2);
  Step& step = At(launched_ + 1);
  step.stats = {};
  step.sampled.Reset(batch);
  EditSlots(batch, &step.stats);
  step.number = ++launched_;  // from here on what throws is the step's failure, told by Wait, as a device would
  step.status = CatchExhaustion("running a step", [&] { return Run(batch, forest, &step); });
  if (!step.status.ok()) step.sampled.Reset(batch);
  return StepTicket{launched_};
}

Result<StepResult> HostRunner::Wait(StepTicket ticket) {
  COPPICE_CHECK(ticket.step == ++waited_ && waited_ <= launched_);
  Step& step = At(ticket.step);
  if (!step.status.ok()) return std::exchange(step.status, OkStatus());
  return StepResult{
      .draws = step.sampled.draws, .scores = step.sampled.scores, .top_logprobs = step.sampled.top_logprobs, .stats = step.stats};
}

void HostRunner::EditSlots(const StepBatch& batch, StepStats* stats) {
  const PhaseTimer phase("edit", &stats->edit_seconds);
  slots_.Edit(batch, At(launched_).sampled.draws);
}

Status HostRunner::Run(const StepBatch& batch, const attention::PrefixForestView& forest, Step* step) {
  StepStats& stats = step->stats;
  PhaseTimer phase("edit", &stats.edit_seconds);
  COPPICE_RETURN_IF_ERROR(MoveSlots(batch.moves));
  COPPICE_RETURN_IF_ERROR(CopyPages(batch.copies));
  if (batch.num_rows() == 0) return OkStatus();
  const bool follows_untold = launched_ - waited_ == 2;
  if (follows_untold && !At(step->number - 1).status.ok()) return Internal("the step before it failed");
  phase.Next("plan", &stats.plan_seconds);
  COPPICE_RETURN_IF_ERROR(plans_.Prepare(forest, stream_, &stats));
  phase.Set("kv_bytes_read", stats.kv_bytes_read);
  phase.Next("forward", &stats.forward_seconds);
  phase.Set("rows", batch.num_rows());
  const ForwardBatch rows{.token_ids = TokensOf(batch),
                          .positions = batch.positions,
                          .slot_mapping = batch.slot_mapping,
                          .logit_rows = sampler_.FindLogitRows(batch)};
  COPPICE_ASSIGN_OR_RETURN(const MatrixView<const float> logits, Forward(rows, forest, *plans_.plans().front()));
  phase.Next("sample", &stats.sample_seconds);
  phase.Set("draws", std::ssize(batch.draws));
  sampler_.Sample(logits, batch, slots_, &step->sampled);
  return OkStatus();
}

std::span<const int32_t> HostRunner::TokensOf(const StepBatch& batch) {
  if (batch.drawn_tokens.empty()) return batch.token_ids;
  const Step& before = At(launched_ - 1);
  token_ids_.assign(batch.token_ids.begin(), batch.token_ids.end());
  for (const auto& [row, draw] : batch.drawn_tokens) {
    COPPICE_CHECK(draw.step == before.number);
    token_ids_[row] = std::max(before.sampled.draws[draw.index].token, 0);
  }
  return token_ids_;
}

}  // namespace coppice
