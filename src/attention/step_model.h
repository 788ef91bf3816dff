// Predicted time of whole steps, launch to end, by the rates of a CostModel: on a GPU the critical path of a task and a merge may
// outlast the sums of a step. Layer: attention, private.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/cost_model.h"

namespace coppice::attention {

// A step's items before any cut, counted under one kv head. Integers: edits add to them and subtract from them.
struct StepShape {
  int64_t read_tokens = 0;                        // from memory
  int64_t item_tokens = 0;                        // of all items: what exceeds read_tokens is read again, from the cache
  int64_t stream_tasks = 0, stream_tokens = 0;    // a task's rows together
  int64_t dense_tasks = 0, dense_row_tokens = 0;  // a task is a tile of rows; rows x tokens, both as computed
  int64_t dense_item_tokens = 0;                  // of the items, whatever their rows
  int64_t stream_row_tokens = 0;                  // rows x tokens
  int64_t two_column_tasks = 0;                   // BackendTraits::two_column_rows
  int64_t item_starts = 0;                        // items, counted once for each of their row groups
  int64_t read_misses = 0, item_misses = 0;       // tokens of read_tokens, of item_tokens, that the cache cannot hold
  int64_t merges = 0, state_rows = 0;             // sets with several contributions; rows x contributions

  int64_t reread_tokens() const { return std::max<int64_t>(0, item_tokens - read_tokens); }
};

// The longest parts of a step once its ranges are cut, alone on the machine.
struct CriticalPath {
  int64_t dense_pieces = 0;                           // tasks after the cuts
  double longest_stream_ns = 0, longest_fold_ns = 0;  // of the step's last tasks
  double longest_dense_ns = 0;                        // with the fold behind it
};

// Without latencies: the longer of reading and computing, and all overheads; `path` is not read then.
double StepNs(const CostModel& cost, const StepShape& shape, const CriticalPath& path);
// StepNs of a step whose warps each have their own tasks; of one of cooperative tasks, in pieces of that many tokens. REQUIRES:
// latencies.
double WarpTasksStepNs(const CostModel& cost, const StepShape& shape, const CriticalPath& path);
double CooperativeStepNs(const CostModel& cost, const StepShape& shape, int64_t piece_tokens, bool merges);
// Tokens below which a step does not cut stream items.
int64_t ShortestStreamPiece(const CostModel& cost, const StepShape& shape);
// The price of a token read again from the cache in a step that shares nothing (`shape`): between the machine's unhidden part and
// 1. REQUIRES: latencies.
double RereadPrice(const CostModel& cost, const StepShape& shape);

}  // namespace coppice::attention
