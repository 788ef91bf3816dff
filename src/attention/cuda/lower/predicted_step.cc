// Counts of tasks for the cost model. Layer: attention/cuda.
#include "attention/cuda/lower/predicted_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention/plan_units.h"

namespace coppice::attention::cuda {
namespace {

// What the tasks of a plan add up to, and the longest of them.
class CutStep {
 public:
  explicit CutStep(const LoweredView& lowered) : translator_(lowered.translator), plan_(lowered.plan), cost_(lowered.cost) {
    double memory_tokens = 0;
    for (const QueuedItem& item : translator_.queued().items()) {
      memory_tokens += item.memory_tokens;
      item.dense ? AddDense(item) : AddStream(item);
    }
    shape_.read_tokens = std::llround(memory_tokens);
    for (const MergeSet& set : plan_.merge_sets) AddMerges(set);
  }

  double Ns() const {
    return translator_.team() ? cost_.TeamsStepNs(shape_, longest_piece_, most_states_ > 1) : cost_.LanesStepNs(shape_, chains_);
  }

 private:
  void AddDense(const QueuedItem& item) {
    const int64_t tasks = CeilDiv(item.rows, kDenseRows);
    shape_.item_tokens += item.tokens;
    shape_.dense_tasks += tasks;
    shape_.dense_row_tokens += cost_.ComputedRows(item.rows) * cost_.ComputedTokens(item.rows, item.tokens);
    shape_.dense_item_tokens += item.tokens;
    chains_.dense_pieces += tasks * translator_.queued().pieces(item.item).count;
    const double ns = cost_.PieceNs(item.rows, LongestPiece(item)) + FoldNs(item, item.rows);
    chains_.longest_dense_ns = std::max(chains_.longest_dense_ns, ns);
  }
  // A block of rows reads the range for itself.
  void AddStream(const QueuedItem& item) {
    const int32_t stream_rows = StreamRows(translator_.spec().deterministic);
    const int64_t blocks = CeilDiv(item.rows, stream_rows), rows = std::min(item.rows, stream_rows);
    shape_.item_tokens += blocks * item.tokens;
    shape_.stream_tasks += blocks;
    shape_.stream_tokens += blocks * item.tokens;
    shape_.stream_row_tokens += int64_t{item.rows} * item.tokens;
    if (cost_.IsWide(rows)) shape_.wide_stream_tasks += blocks;
    chains_.stream_pieces += blocks * translator_.queued().pieces(item.item).count;
    const int32_t piece = LongestPiece(item);
    longest_piece_ = std::max(longest_piece_, piece);
    chains_.longest_stream_ns = std::max(chains_.longest_stream_ns, cost_.PieceNs(rows, piece));
    chains_.longest_fold_ns = std::max(chains_.longest_fold_ns, FoldNs(item, rows));
  }
  // Of a set whose contributions are items of the plan: how these are cut is in the chains.
  void AddMerges(const MergeSet& set) {
    int32_t items = 0;
    for (const Contribution& c : plan_.contributions.subspan(set.contribution_begin, set.contribution_count)) {
      items += translator_.queued().pieces(c.item).count > 0;
    }
    if (items < 2) return;
    shape_.merges += 1;
    shape_.state_rows += int64_t{translator_.queued().RowsOf(set)} * items;
  }
  int32_t LongestPiece(const QueuedItem& item) const {
    int32_t longest = 0, begin = 0;
    for (const int32_t end : translator_.PieceEnds(item.item)) {
      longest = std::max(longest, end - begin);
      begin = end;
    }
    return std::max(longest, item.tokens - begin);
  }
  // By whoever of the first set's tasks arrives last; other sets have as many states or nearly so.
  double FoldNs(const QueuedItem& item, int64_t rows) {
    const int32_t states = translator_.SetStates(plan_.members[plan_.items[item.item].member_begin]);
    most_states_ = std::max(most_states_, states);
    return states > 1 ? cost_.FoldNs(rows, states) : 0;
  }

  const PlanTranslator& translator_;
  const PlanView& plan_;
  const CostModel& cost_;
  StepShape shape_;
  StepChains chains_;
  int32_t longest_piece_ = 0, most_states_ = 1;
};

}  // namespace

double PredictStepNs(const LoweredView& lowered) { return CutStep(lowered).Ns(); }

}  // namespace coppice::attention::cuda
