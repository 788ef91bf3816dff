#include "runner/step_ring.h"

#include <algorithm>
#include <utility>

namespace coppice {

Result<StepResult> ResultOf(RingStep* step) {
  if (!step->status.ok()) return std::exchange(step->status, OkStatus());
  return StepResult{.draws = step->sampled.draws,
                    .scores = step->sampled.scores,
                    .score_ranks = step->sampled.score_ranks,
                    .top_logprobs = step->sampled.top_logprobs,
                    .selected = step->sampled.selected,
                    .stats = step->stats};
}

void FillTokens(const StepBatch& batch, const RingStep& before, std::vector<int32_t>* token_ids) {
  token_ids->assign(batch.token_ids.begin(), batch.token_ids.end());
  for (const auto& [row, draw] : batch.drawn_tokens) {
    COPPICE_CHECK(draw.step == before.number);
    (*token_ids)[row] = std::max(before.sampled.draws[draw.index].token, 0);
  }
}

}  // namespace coppice
