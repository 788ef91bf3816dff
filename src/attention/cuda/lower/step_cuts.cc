// Sums of a step's stream work, and the two rules of cuts. Layer: attention/cuda.
#include "attention/cuda/lower/step_cuts.h"

#include <algorithm>

#include "attention/cuda/kernel_config.h"
#include "attention/plan_units.h"

namespace coppice::attention::cuda {

StepCuts StepCutter::Choose(std::span<const QueuedItem> items, const std::function<bool()>& merges, int64_t most_states,
                            const SmCosts& costs) {
  const int64_t heads = spec_.num_kv_heads;
  int64_t tokens = 0, blocks = 0, steps = 0, overlapped_steps = 0;
  double memory_tokens = 0;
  bool overlapped = HasOverlap(costs);
  for (const QueuedItem& item : items) {
    if (item.dense) continue;
    const int64_t item_blocks = CeilDiv(item.rows, kStreamRows);
    blocks += item_blocks;
    tokens += item.tokens * item_blocks;
    steps += item_blocks * CeilDiv(item.tokens, kStreamStepTokens);
    overlapped_steps += CeilDiv(item.tokens, kOverlappedStepTokens);
    overlapped &= item.rows <= kOverlappedRows;
    memory_tokens += item.memory_tokens;
  }
  const StreamWork stream{.bytes = static_cast<double>(tokens * heads) * costs.bytes_per_token(),
                          .memory_share = memory_tokens / static_cast<double>(std::max<int64_t>(tokens, 1)),
                          .steps = steps * heads,
                          .tasks = blocks * heads,
                          .overlapped_steps = overlapped_steps * heads,
                          .overlapped = overlapped};
  return {.split = partition_.Choose(items, stream, costs, most_states),
          .stream = ChooseStreamCuts(items, spec_.num_kv_heads, merges, num_sms_, costs)};
}

void CutRange(const QueuedItem& item, const StepCuts& cuts, int64_t most, const SmCosts& costs, std::vector<int32_t>& ends) {
  if (item.dense) {
    CutDenseItem(item, cuts.split.dense_piece, most, costs, ends);
  } else {
    CutStreamItem(item, cuts.stream, most, costs, ends);
  }
}

}  // namespace coppice::attention::cuda
