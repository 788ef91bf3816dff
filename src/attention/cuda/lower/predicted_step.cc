// Counts of tasks for the cost model. Layer: attention/cuda.
#include "attention/cuda/lower/predicted_step.h"

#include <algorithm>
#include <cmath>

#include "attention/plan_units.h"

namespace coppice::attention::cuda {
namespace {

constexpr ItemKind kDense = ItemKind::kDenseTile, kStream = ItemKind::kStreamTile;

}  // namespace

void CutStep::Add(const QueuedItem& item, std::span<const int32_t> piece_ends, int32_t states) {
  memory_tokens_ += item.memory_tokens;
  int32_t longest = 0, begin = 0;
  for (const int32_t end : piece_ends) {
    longest = std::max(longest, end - begin);
    begin = end;
  }
  longest = std::max(longest, item.tokens - begin);
  most_states_ = std::max(most_states_, states);
  if (item.dense) {
    critical_path_.dense_pieces += item.blocks * (std::ssize(piece_ends) + 1);
    AddDense(item, longest, states);
  } else {
    AddStream(item, longest, states);
  }
}

void CutStep::AddDense(const QueuedItem& item, int32_t longest, int32_t states) {
  shape_.item_tokens += item.tokens;
  shape_.dense_tasks += item.blocks;
  shape_.dense_row_tokens += cost_.tiles().ComputedRows(kDense, item.rows) * cost_.tiles().ComputedTokens(kDense, item.tokens);
  shape_.dense_item_tokens += item.tokens;
  critical_path_.longest_dense_ns =
      std::max(critical_path_.longest_dense_ns, cost_.PieceNs(kDense, item.rows, longest) + FoldNs(kDense, item.rows, states));
}

// A block of rows reads the range for itself.
void CutStep::AddStream(const QueuedItem& item, int32_t longest, int32_t states) {
  const int64_t blocks = CeilDiv(item.rows, stream_rows_), rows = std::min(item.rows, stream_rows_);
  shape_.item_tokens += blocks * item.tokens;
  shape_.stream_tasks += blocks;
  shape_.stream_tokens += blocks * item.tokens;
  shape_.stream_row_tokens += int64_t{item.rows} * item.tokens;
  if (cost_.tiles().IsTwoColumn(rows)) shape_.two_column_tasks += blocks;
  longest_piece_ = std::max(longest_piece_, longest);
  critical_path_.longest_stream_ns = std::max(critical_path_.longest_stream_ns, cost_.PieceNs(kStream, rows, longest));
  critical_path_.longest_fold_ns = std::max(critical_path_.longest_fold_ns, FoldNs(kStream, rows, states));
}

// By the set's task that arrives last.
double CutStep::FoldNs(ItemKind kind, int64_t rows, int32_t states) const {
  return states > 1 ? cost_.FoldNs(kind, rows, states) : 0;
}

double CutStep::Ns(bool cooperative) const {
  StepShape shape = shape_;
  shape.read_tokens = std::llround(memory_tokens_);
  return cooperative && cost_.cooperative_warps() > 0 ? CooperativeStepNs(cost_, shape, longest_piece_, most_states_ > 1)
                                                      : WarpTasksStepNs(cost_, shape, critical_path_);
}

double PredictStepNs(const LoweredView& lowered) {
  const auto& [translator, plan, cost] = lowered;
  CutStep step(cost, StreamRows(translator.spec().deterministic));
  for (const QueuedItem& item : translator.queued().items()) {
    const int32_t first_set = plan.members[plan.items[item.item].member_begin];
    step.Add(item, translator.PieceEnds(item.item), translator.SetStates(first_set));
  }
  for (const MergeSet& set : plan.merge_sets) {
    if (set.contribution_count > 1) step.AddMerges(1, int64_t{translator.queued().RowsOf(set)} * set.contribution_count);
  }
  return step.Ns(translator.cooperative());
}

}  // namespace coppice::attention::cuda
