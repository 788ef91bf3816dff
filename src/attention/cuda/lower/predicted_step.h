// The predicted time of a step as it is cut for SMs and warps, by the arithmetic that the share decision goes by (CostModel): its
// counts come from the tasks in place of the tree. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <span>

#include "attention/cuda/lower/lowered_plan.h"
#include "attention/cuda/lower/step_ranges.h"
#include "attention/step_model.h"

namespace coppice::attention::cuda {

// The sums of a step's tasks, and the longest of them.
class CutStep {
 public:
  // cost: with latencies, and outlives this. stream_rows: rows of a stream tile.
  CutStep(const CostModel& cost, int32_t stream_rows) : cost_(cost), stream_rows_(stream_rows) {}

  // A range cut at these ends and at its own. states: contributions, pieces counted one by one, of the first of its merge sets;
  // the others have as many or nearly so.
  void Add(const QueuedItem& item, std::span<const int32_t> piece_ends, int32_t states);
  // Merge sets of so many rows in all whose contributions are several ranges: their cuts are in the critical path.
  void AddMerges(int64_t sets, int64_t state_rows) { shape_.merges += sets, shape_.state_rows += state_rows; }
  // cooperative: the stream warps of an SM read each task together.
  double Ns(bool cooperative) const;

 private:
  void AddDense(const QueuedItem& item, int32_t longest, int32_t states);
  void AddStream(const QueuedItem& item, int32_t longest, int32_t states);
  double FoldNs(ItemKind kind, int64_t rows, int32_t states) const;

  const CostModel& cost_;
  int32_t stream_rows_;
  StepShape shape_;
  CriticalPath critical_path_;
  double memory_tokens_ = 0;
  int32_t longest_piece_ = 0, most_states_ = 1;
};

// Of the plan that was translated last, at its lengths. REQUIRES: a cost model with latencies.
double PredictStepNs(const LoweredView& lowered);

}  // namespace coppice::attention::cuda
