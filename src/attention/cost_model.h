// Predicted time of attention work: max(bytes / bandwidth, flops / rate) plus fixed costs per task, per partial state and per
// merge (roofline; Bifurcated Attention section 4, RelayAttention eq. 10), and on a GPU the time to the end of a whole step, whose
// longest chain of a task and a merge may outlast its sums. Constants come from a MachineModel. Decides nothing: share/ does.
// Layer: attention, private.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/backend_traits.h"
#include "attention/machine_model.h"
#include "attention/plan_units.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// A step's items before any cut, counted under one kv head. Integers: edits add to them and subtract from them.
struct StepShape {
  int64_t read_tokens = 0;                        // from memory
  int64_t item_tokens = 0;                        // of all items: what exceeds read_tokens is read again, from the cache
  int64_t stream_tasks = 0, stream_tokens = 0;    // a task's rows together
  int64_t dense_tasks = 0, dense_row_tokens = 0;  // a task is a tile of rows; rows x tokens, both as computed
  int64_t dense_item_tokens = 0;                  // of the items, whatever their rows
  int64_t stream_row_tokens = 0;                  // rows x tokens
  int64_t wide_stream_tasks = 0;                  // BackendTraits::wide_stream_rows
  int64_t item_starts = 0;                        // items, counted once for each of their row groups
  int64_t read_misses = 0, item_misses = 0;       // tokens of read_tokens, of item_tokens, that the cache cannot hold
  int64_t merges = 0, state_rows = 0;             // sets with several contributions; rows x contributions

  int64_t reread_tokens() const { return std::max<int64_t>(0, item_tokens - read_tokens); }
};

// What of a step lasts longest once its ranges are cut, alone on the machine.
struct StepChains {
  int64_t dense_pieces = 0;                           // tasks after the cuts
  double longest_stream_ns = 0, longest_fold_ns = 0;  // of the step's last tasks
  double longest_dense_ns = 0;                        // with the fold behind it
};

// A range cut along KV so that reading the pieces side by side and folding their states takes least.
struct Pieces {
  int32_t count = 1;
  double ns = 0;  // one piece
};

// What a piece of work asks of the whole machine, in nanoseconds of each resource.
struct Load {
  double memory_ns = 0, compute_ns = 0, overhead_ns = 0;
  Load& operator+=(const Load& other) {
    memory_ns += other.memory_ns, compute_ns += other.compute_ns, overhead_ns += other.overhead_ns;
    return *this;
  }
  // Both resources are there at once; the overheads are on top.
  double RooflineNs() const { return (memory_ns > compute_ns ? memory_ns : compute_ns) + overhead_ns; }
};

// The machine's constants applied to one spec and one backend. All kv heads together, per layer; "rows" are per kv head.
class CostModel {
 public:
  CostModel() = default;
  CostModel(const AttentionSpec& spec, const BackendTraits& traits, const MachineModel& machine);

  ItemKind KindOf(int64_t rows) const { return rows >= dense_min_rows_ ? ItemKind::kDenseTile : ItemKind::kStreamTile; }
  // BackendTraits::wide_stream_rows.
  bool IsWide(int64_t rows) const { return rows >= wide_stream_rows_; }
  // Items that `rows` rows over one range need (max_item_rows).
  int64_t RowGroups(int64_t rows) const { return max_item_rows_ == 0 ? 1 : CeilDiv(rows, max_item_rows_); }

  // KV of one token, from memory; or again, from the cache, when `tokens` tokens are read by several items one after the other.
  double ReadNs() const { return read_ns_; }
  double RereadNs(int64_t tokens) const;
  // Of that many tokens, those that are read from memory again.
  int64_t Misses(int64_t tokens) const { return std::max<int64_t>(0, tokens - cache_tokens_); }
  // Scores and values of `rows` rows against one token, rows padded to what the tiles compute.
  double ComputeNs(int64_t rows) const;
  // A partial state of `rows` rows, written and read back.
  double StateNs(int64_t rows) const { return static_cast<double>(rows) * state_ns_; }
  // Starting one item (all its heads) or folding one merge set, spread over the workers.
  double ItemNs() const { return item_ns_; }
  double MergeNs() const { return merge_ns_; }
  // Starting all tasks that `rows` rows over one range need.
  double StartNs(int64_t rows) const;
  // Of that, what dense tasks take where steps are sums.
  double DenseStartNs(int64_t rows) const { return latencies_ ? 0 : static_cast<double>(DenseTasks(rows)) * dense_start_ns_; }
  // What is computed for `rows` rows, or for them over `tokens` tokens: padding counts.
  int64_t ComputedRows(int64_t rows) const { return ComputedRows(KindOf(rows), rows); }
  int64_t ComputedRows(ItemKind kind, int64_t rows) const;
  int64_t ComputedTokens(int64_t rows, int64_t tokens) const { return ComputedTokens(KindOf(rows), tokens); }
  int64_t ComputedTokens(ItemKind kind, int64_t tokens) const;

  // Whether the machine's latencies are known; Cut and FoldNs need them.
  bool has_latencies() const { return latencies_; }
  // Whether the lanes of a worker may read a task together (BackendTraits::team_lanes).
  bool has_teams() const { return team_lanes_ > 0; }
  int64_t DenseTasks(int64_t rows) const { return KindOf(rows) == ItemKind::kStreamTile ? 0 : CeilDiv(rows, tile_rows_); }
  // Tokens below which a step does not cut stream items.
  int64_t ShortestStreamPiece(const StepShape& shape) const;
  Pieces Cut(int64_t rows, int64_t tokens, int64_t shortest_stream_piece) const;
  // A task of `rows` rows over `tokens` tokens, alone on its worker.
  double PieceNs(ItemKind kind, int64_t rows, int64_t tokens) const;
  // The fold of `states` states of a set by the item of `rows` rows that arrives last.
  double FoldNs(int64_t rows, int64_t states) const { return FoldNs(KindOf(rows), rows, states); }
  double FoldNs(ItemKind kind, int64_t rows, int64_t states) const;
  // The whole step, launch to end. Without latencies: the longer of reading and computing, and all overheads; no chains then.
  double StepNs(const StepShape& shape, const StepChains& chains) const;
  // StepNs of a step whose lanes each have their own tasks; of one that teams of lanes read, in pieces of that many tokens.
  double LanesStepNs(const StepShape& shape, const StepChains& chains) const;
  double TeamsStepNs(const StepShape& shape, int64_t piece_tokens, bool merges) const;
  // What the cache's time for a token read again costs a step that shares nothing (`shape`): between the machine's unhidden part
  // and 1.
  double RereadPrice(const StepShape& shape) const;

  int32_t workers() const { return workers_; }
  double task_fixed_ns() const { return task_fixed_ns_; }  // on the worker that runs it
  int64_t kv_bytes_per_token() const { return kv_bytes_; }
  int64_t flops_per_row_token() const { return flops_; }  // useful ones, without padding
  int64_t state_bytes_per_row() const { return state_bytes_; }

 private:
  // Of a task alone on its worker: reading and computing `tokens` tokens, and what comes before.
  double TokensNs(ItemKind kind, int64_t rows, int64_t tokens) const;
  double StartLatencyNs(ItemKind kind, int64_t rows) const {
    return kind == ItemKind::kDenseTile ? DenseLatency(rows) * machine_.dense_task_ns : 0;
  }
  double DenseLatency(int64_t rows) const { return rows >= row_unit_ ? dense_latency_ : 1; }
  // All stream tasks on all lanes: their starts, and their tokens from the cache.
  double StreamNs(const StepShape& shape) const;
  // Whether each worker has one stream task at most and no dense one, which teams of lanes read; and the step then, cut for them.
  bool RunsAsTeams(const StepShape& shape) const;
  double CutTeamsStepNs(const StepShape& shape) const;
  int64_t TeamSteps(int64_t tokens) const;

  int64_t kv_bytes_ = 0, flops_ = 0, state_bytes_ = 0;
  int64_t dense_min_rows_ = 1, wide_stream_rows_ = 1, row_unit_ = 1, tile_rows_ = 1, max_item_rows_ = 0;
  int32_t workers_ = 1, lanes_ = 1, team_lanes_ = 0, kv_tile_ = 1, kv_heads_ = 1, group_size_ = 1;
  int64_t cache_tokens_ = 0;
  bool latencies_ = false;
  MachineModel machine_;
  double read_ns_ = 0, cache_ns_ = 0, dense_latency_ = 1, dense_ns_ = 0, stream_ns_ = 0, stream_kv_ns_ = 0;
  double state_ns_ = 0, item_ns_ = 0, dense_start_ns_ = 0, merge_ns_ = 0, task_fixed_ns_ = 0;
};

}  // namespace coppice::attention
