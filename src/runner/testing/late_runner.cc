#include "runner/testing/late_runner.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

constexpr int32_t kSpoiled = -0x5b011ed;

}  // namespace

Result<StepTicket> LateRunner::Launch(const StepBatch& batch, const attention::PrefixForestView& forest) {
  Step& step = steps_.Prepare(batch);
  Work& work = step.work;
  work.batch = batch;
  work.forest = forest;
  work.arrays.reserve(16);
  for (auto member : {&attention::PrefixForestView::node_parent, &attention::PrefixForestView::node_begin,
                      &attention::PrefixForestView::node_end, &attention::PrefixForestView::branch_node,
                      &attention::PrefixForestView::branch_query_begin, &attention::PrefixForestView::branch_query_count,
                      &attention::PrefixForestView::branch_kv_len, &attention::PrefixForestView::branch_page_begin,
                      &attention::PrefixForestView::branch_page_capacity, &attention::PrefixForestView::page_indices}) {
    const std::span<const int32_t> values = forest.*member;
    work.forest.*member = work.arrays.emplace_back(values.begin(), values.end());
  }
  work.tree_mask.assign(forest.query_tree_mask.begin(), forest.query_tree_mask.end());
  work.forest.query_tree_mask = work.tree_mask;
  StepBatch& given = const_cast<StepBatch&>(batch);
  std::ranges::fill(given.token_ids, kSpoiled);
  std::ranges::fill(given.positions, kSpoiled);
  std::ranges::fill(given.slot_mapping, kSpoiled);
  std::ranges::fill(given.masks, 0u);
  const StepTicket ticket = steps_.Enter(step);
  most_under_way_ = std::max(most_under_way_, steps_.num_under_way());
  return ticket;
}

Result<StepResult> LateRunner::Wait(StepTicket ticket) {
  Step& step = steps_.Take(ticket);
  SampledStep& sampled_before = steps_.Before(step).sampled;
  for (TokenDraw& draw : sampled_before.draws) draw = {.sample = kSpoiled, .token = kSpoiled};
  std::ranges::fill(sampled_before.top_logprobs, TokenLogprob{.token = kSpoiled});
  std::ranges::fill(sampled_before.selected, SelectedToken{.token = kSpoiled});
  step.status = Run(&step);
  return ResultOf(&step);
}

Status LateRunner::Run(Step* step) {
  const Work work = std::exchange(step->work, {});
  COPPICE_ASSIGN_OR_RETURN(const StepTicket inner, inner_->Launch(work.batch, work.forest));
  COPPICE_CHECK(inner.step == step->number);
  const Result<StepResult> waited = inner_->Wait(inner);
  if (!waited.ok()) {
    if (steps_.num_under_way() > 0) steps_.At(step->number + 1).work.batch.ClearRows();  // it stands on this step
    return waited.status();
  }
  step->sampled.draws.assign(waited->draws.begin(), waited->draws.end());
  step->sampled.scores.assign(waited->scores.begin(), waited->scores.end());
  step->sampled.score_ranks.assign(waited->score_ranks.begin(), waited->score_ranks.end());
  step->sampled.top_logprobs.assign(waited->top_logprobs.begin(), waited->top_logprobs.end());
  step->sampled.selected.assign(waited->selected.begin(), waited->selected.end());
  step->stats = waited->stats;
  return OkStatus();
}

Status LateRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  COPPICE_CHECK(steps_.num_under_way() == 0);
  return inner_->ReadKv(pages, num_tokens, kv);
}

Status LateRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  COPPICE_CHECK(steps_.num_under_way() == 0);
  return inner_->WriteKv(pages, begin, num_tokens, kv);
}

}  // namespace coppice
