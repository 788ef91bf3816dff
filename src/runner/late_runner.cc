#include "runner/late_runner.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

constexpr int32_t kSpoiled = -0x5b011ed;

}  // namespace

Result<StepTicket> LateRunner::Launch(const StepBatch& batch, const attention::PrefixForestView& forest) {
  Step& step = under_way_.emplace_back();
  COPPICE_CHECK(under_way_.size() <= 2);
  most_under_way_ = std::max(most_under_way_, under_way_.size());
  step.number = ++launched_;
  step.batch = batch;
  step.forest = forest;
  step.arrays.reserve(16);
  for (auto member : {&attention::PrefixForestView::node_parent, &attention::PrefixForestView::node_begin,
                      &attention::PrefixForestView::node_end, &attention::PrefixForestView::branch_node,
                      &attention::PrefixForestView::branch_query_begin, &attention::PrefixForestView::branch_query_count,
                      &attention::PrefixForestView::branch_kv_len, &attention::PrefixForestView::branch_page_begin,
                      &attention::PrefixForestView::branch_page_capacity, &attention::PrefixForestView::page_indices}) {
    const std::span<const int32_t> values = forest.*member;
    step.forest.*member = step.arrays.emplace_back(values.begin(), values.end());
  }
  step.tree_mask.assign(forest.query_tree_mask.begin(), forest.query_tree_mask.end());
  step.forest.query_tree_mask = step.tree_mask;
  StepBatch& given = const_cast<StepBatch&>(batch);
  std::ranges::fill(given.token_ids, kSpoiled);
  std::ranges::fill(given.positions, kSpoiled);
  std::ranges::fill(given.slot_mapping, kSpoiled);
  std::ranges::fill(given.masks, 0u);
  return StepTicket{step.number};
}

Result<StepResult> LateRunner::Wait(StepTicket ticket) {
  for (TokenDraw& draw : result_.draws) draw = {.sample = kSpoiled, .token = kSpoiled};
  std::ranges::fill(result_.top_logprobs, TokenLogprob{.token = kSpoiled});
  COPPICE_CHECK(!under_way_.empty() && under_way_.front().number == ticket.step);
  const Step step = std::move(under_way_.front());
  under_way_.pop_front();
  COPPICE_ASSIGN_OR_RETURN(const StepTicket inner, inner_->Launch(step.batch, step.forest));
  COPPICE_CHECK(inner.step == ticket.step);
  Result<StepResult> waited = inner_->Wait(inner);
  if (!waited.ok()) DropRows();
  COPPICE_ASSIGN_OR_RETURN(const StepResult result, std::move(waited));
  result_.draws.assign(result.draws.begin(), result.draws.end());
  result_.scores.assign(result.scores.begin(), result.scores.end());
  result_.top_logprobs.assign(result.top_logprobs.begin(), result.top_logprobs.end());
  return StepResult{.draws = result_.draws, .scores = result_.scores, .top_logprobs = result_.top_logprobs, .stats = result.stats};
}

void LateRunner::DropRows() {
  for (Step& step : under_way_) step.batch.ClearRows();
}

Status LateRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  COPPICE_CHECK(under_way_.empty());
  return inner_->ReadKv(pages, num_tokens, kv);
}

Status LateRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  COPPICE_CHECK(under_way_.empty());
  return inner_->WriteKv(pages, begin, num_tokens, kv);
}

}  // namespace coppice
