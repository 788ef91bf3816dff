// Predicted time of attention work: max(bytes / bandwidth, flops / rate) plus fixed costs per task, per partial state and per
// merge (roofline; Bifurcated Attention section 4, RelayAttention eq. 10). Whole steps: step_model.h. Constants come from a
// MachineModel. Decides nothing: share/ does. Layer: attention, private.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/backend_traits.h"
#include "attention/machine_model.h"
#include "attention/tile_rules.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// A range cut along KV so that reading the pieces side by side and folding their states takes least.
struct Pieces {
  int32_t count = 1;
  double ns = 0;  // one piece
};

// The load of a piece of work on the whole machine, in nanoseconds of each resource.
struct Load {
  double memory_ns = 0, compute_ns = 0, overhead_ns = 0;
  Load& operator+=(const Load& other) {
    memory_ns += other.memory_ns, compute_ns += other.compute_ns, overhead_ns += other.overhead_ns;
    return *this;
  }
  // Both resources are there at once; the overheads are on top.
  double RooflineNs() const { return (memory_ns > compute_ns ? memory_ns : compute_ns) + overhead_ns; }
};

// Nanoseconds of the whole machine, all kv heads of a layer together.
struct CostRates {
  double read_ns = 0;                  // KV of one token, from memory
  double cache_ns = 0;                 // the same, from the cache
  double dense_ns = 0, stream_ns = 0;  // scores and values of one row against one token
  double stream_kv_ns = 0;             // of a stream tile, one token of KV whatever its rows
  double state_ns = 0;                 // a row's partial state, written and read back
  double item_ns = 0, merge_ns = 0;    // starting an item, folding a merge set, spread over the workers
  double dense_start_ns = 0;           // of a dense task, likewise
};

// The machine's constants applied to one spec and one backend. All kv heads together, per layer; "rows" are per kv head.
class CostModel {
 public:
  CostModel() = default;
  CostModel(const AttentionSpec& spec, const BackendTraits& traits, const MachineModel& machine);

  const TileRules& tiles() const { return tiles_; }
  const CostRates& rates() const { return rates_; }
  const MachineModel& machine() const { return machine_; }

  // KV of one token from the cache, when `tokens` tokens are read by several items one after the other.
  double RereadNs(int64_t tokens) const;
  // Of that many tokens, those that are read from memory again.
  int64_t Misses(int64_t tokens) const { return std::max<int64_t>(0, tokens - cache_tokens_); }
  // Scores and values of `rows` rows against one token, rows padded to what the tiles compute.
  double ComputeNs(int64_t rows) const;
  // A partial state of `rows` rows, written and read back.
  double StateNs(int64_t rows) const { return static_cast<double>(rows) * rates_.state_ns; }
  // Starting all tasks that `rows` rows over one range need.
  double StartNs(int64_t rows) const;
  // Of that, what dense tasks take where steps are sums.
  double DenseStartNs(int64_t rows) const {
    return has_latencies() ? 0 : static_cast<double>(tiles_.DenseTasks(rows)) * rates_.dense_start_ns;
  }

  // Whether the machine's latencies are known; what follows needs them.
  bool has_latencies() const { return machine_.launch_ns > 0; }
  Pieces Cut(int64_t rows, int64_t tokens, int64_t shortest_stream_piece) const;
  // A task of `rows` rows over `tokens` tokens, alone on its worker.
  double PieceNs(ItemKind kind, int64_t rows, int64_t tokens) const;
  // The fold of `states` states of a set by the item of `rows` rows that arrives last.
  double FoldNs(int64_t rows, int64_t states) const { return FoldNs(tiles_.KindOf(rows), rows, states); }
  double FoldNs(ItemKind kind, int64_t rows, int64_t states) const;

  int32_t workers() const { return workers_; }
  int32_t warps() const { return warps_; }                          // BackendTraits::stream_warps
  int32_t cooperative_warps() const { return cooperative_warps_; }  // BackendTraits::cooperative_warps
  int32_t kv_heads() const { return kv_heads_; }
  int64_t kv_bytes_per_token() const { return kv_bytes_; }
  int64_t flops_per_row_token() const { return flops_; }  // useful ones, without padding
  int64_t state_bytes_per_row() const { return state_bytes_; }

 private:
  // Of a task alone on its worker: reading and computing `tokens` tokens, and what comes before.
  double TokensNs(ItemKind kind, int64_t rows, int64_t tokens) const;
  double StartLatencyNs(ItemKind kind, int64_t rows) const {
    return kind == ItemKind::kDenseTile ? DenseLatency(rows) * machine_.dense_task_ns : 0;
  }
  double DenseLatency(int64_t rows) const { return tiles_.FillsUnit(rows) ? dense_latency_ : 1; }

  TileRules tiles_;
  CostRates rates_;
  MachineModel machine_;
  int64_t kv_bytes_ = 0, flops_ = 0, state_bytes_ = 0, cache_tokens_ = 0;
  int32_t workers_ = 1, warps_ = 1, cooperative_warps_ = 0, kv_heads_ = 1, group_size_ = 1;
  double dense_latency_ = 1;
};

}  // namespace coppice::attention
