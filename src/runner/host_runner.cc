#include "runner/host_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

// Adds the time since the last lap to a counter.
class LapTimer {
 public:
  void Lap(double* seconds) {
    const auto now = std::chrono::steady_clock::now();
    *seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

HostRunner::HostRunner(Parts parts)
    : info_(std::move(parts.info)),
      stream_(parts.stream),
      sampler_(parts.executor, info_.model.vocab_size, std::move(parts.distributions)) {
  int32_t others = 0;
  for (const GroupPlan& group : parts.other_plans) others += group.num_layers;
  groups_.push_back({std::move(parts.plan), info_.model.num_layers - others});
  for (GroupPlan& group : parts.other_plans) groups_.push_back(std::move(group));
  for (const GroupPlan& group : groups_) plans_.push_back(group.plan.get());
}

Result<StepTicket> HostRunner::Launch(const StepBatch& batch, const attention::PrefixForestView& forest) {
  COPPICE_CHECK(launched_ - waited_ < 2);
  Step& step = At(++launched_);
  step.number = launched_;
  step.stats = {};
  step.sampled.Reset(batch);
  step.status = Run(batch, forest, &step);  // told by Wait, as a device would
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

Status HostRunner::Run(const StepBatch& batch, const attention::PrefixForestView& forest, Step* step) {
  LapTimer timer;
  COPPICE_RETURN_IF_ERROR(MoveSlots(batch.moves));
  COPPICE_RETURN_IF_ERROR(CopyPages(batch.copies));
  slots_.Edit(batch, At(step->number - 1).sampled.draws);
  timer.Lap(&step->stats.forward_seconds);
  if (batch.num_rows() == 0) return OkStatus();
  const bool follows_untold = launched_ - waited_ == 2;
  if (follows_untold && !At(step->number - 1).status.ok()) return Internal("the step before it failed");
  for (const auto& [plan, num_layers] : groups_) {
    COPPICE_RETURN_IF_ERROR(plan->Update(forest));
    COPPICE_RETURN_IF_ERROR(plan->Upload(stream_));
    const attention::PlanStats stats = plan->Stats();
    step->stats.kv_bytes_read += stats.kv_bytes_read * num_layers;
    step->stats.kv_bytes_read_unshared += stats.kv_bytes_read_unshared * num_layers;
    if (plan == groups_.front().plan) step->stats.grouped_rows = grouped_rows_.Count(*plan, stats.updates_replanned);
  }
  timer.Lap(&step->stats.plan_seconds);
  const ForwardBatch rows{.token_ids = TokensOf(batch),
                          .positions = batch.positions,
                          .slot_mapping = batch.slot_mapping,
                          .logit_rows = sampler_.FindLogitRows(batch)};
  COPPICE_ASSIGN_OR_RETURN(const MatrixView<const float> logits, Forward(rows, forest, *plans_.front()));
  timer.Lap(&step->stats.forward_seconds);
  sampler_.Sample(logits, batch, slots_, &step->sampled);
  timer.Lap(&step->stats.sample_seconds);
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
