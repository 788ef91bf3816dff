// The arithmetic of cost_model.h. Layer: attention.
#include "attention/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/stream_cuts.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

// Of a stream tile's fold, four rows a pass: the ticket and the contributions are those of the pass before it if both are of one
// query's heads.
constexpr double kLaterFoldPass = 0.3;

}  // namespace

CostModel::CostModel(const AttentionSpec& spec, const BackendTraits& traits, const MachineModel& machine) {
  COPPICE_CHECK(machine.read_bytes_per_s > 0 && machine.cache_bytes_per_s > 0 && machine.dense_flops_per_s > 0 &&
                machine.stream_flops_per_s > 0 && machine.state_bytes_per_s > 0);
  const int64_t computed_dim = std::max(traits.native_head_dim, spec.head_dim);
  kv_bytes_ = int64_t{2} * spec.num_kv_heads * spec.head_dim * static_cast<int64_t>(SizeOf(spec.kv_dtype));
  flops_ = int64_t{4} * spec.num_kv_heads * spec.head_dim;
  state_bytes_ = int64_t{spec.num_kv_heads} * (spec.head_dim + 2) * 4;
  warps_ = std::max(traits.stream_warps, 1);
  cooperative_warps_ = traits.cooperative_warps;
  kv_heads_ = spec.num_kv_heads;
  group_size_ = spec.group_size();
  machine_ = machine;
  tiles_ = TileRules(traits, /*pads_tokens=*/has_latencies());
  dense_latency_ = traits.dense_latency;
  workers_ = std::max(traits.workers, 1);
  const double kv_ns = 1e9 * static_cast<double>(kv_bytes_);
  const double cache_bytes_per_s = machine.cache_bytes_per_s * traits.stream_cache_share;
  const double cache_tokens = machine.cache_bytes / static_cast<double>(kv_bytes_);
  cache_tokens_ = std::isinf(cache_tokens) ? std::numeric_limits<int64_t>::max() : std::llround(cache_tokens);
  const double row_flops = 4.0 * spec.num_kv_heads * static_cast<double>(computed_dim);
  rates_ = {.read_ns = kv_ns / machine.read_bytes_per_s,
            .cache_ns = kv_ns / std::max(cache_bytes_per_s, machine.read_bytes_per_s),
            .dense_ns = 1e9 * row_flops / machine.dense_flops_per_s,
            .stream_ns = 1e9 * row_flops / machine.stream_flops_per_s,
            .stream_kv_ns = machine.stream_kv_bytes_per_s > 0 ? kv_ns / machine.stream_kv_bytes_per_s : 0,
            .state_ns = 1e9 * 2.0 * static_cast<double>(state_bytes_) / machine.state_bytes_per_s,
            .item_ns = machine.item_fixed_ns * spec.num_kv_heads / workers_,
            .merge_ns = machine.merge_fixed_ns * spec.num_kv_heads / workers_,
            .dense_start_ns = machine.dense_task_ns * spec.num_kv_heads / workers_};
}

double CostModel::RereadNs(int64_t tokens) const {
  if (tokens <= 0) return rates_.cache_ns;
  const double hit = std::min(1.0, static_cast<double>(cache_tokens_) / static_cast<double>(tokens));
  return hit * rates_.cache_ns + (1.0 - hit) * rates_.read_ns;
}

double CostModel::ComputeNs(int64_t rows) const {
  if (tiles_.KindOf(rows) == ItemKind::kStreamTile) return rates_.stream_kv_ns + static_cast<double>(rows) * rates_.stream_ns;
  return static_cast<double>(tiles_.ComputedRows(rows)) * rates_.dense_ns;
}

double CostModel::StartNs(int64_t rows) const {
  if (!has_latencies()) return static_cast<double>(tiles_.RowGroups(rows)) * rates_.item_ns + DenseStartNs(rows);
  if (tiles_.KindOf(rows) == ItemKind::kStreamTile) return machine_.stream_task_ns * kv_heads_ / (workers_ * warps_);
  return static_cast<double>(tiles_.DenseTasks(rows)) * machine_.unhidden_start * machine_.dense_task_ns * kv_heads_ / workers_;
}

Pieces CostModel::Cut(int64_t rows, int64_t tokens, int64_t shortest_stream_piece) const {
  const ItemKind kind = tiles_.KindOf(rows);
  const bool dense = kind == ItemKind::kDenseTile;
  const int64_t shortest = dense ? tiles_.kv_tile() : shortest_stream_piece;
  const double read_ns = TokensNs(kind, rows, tokens);
  const double fold_ns = FoldNs(rows, 2) - FoldNs(rows, 1);
  const int64_t most = std::clamp(tokens / shortest, int64_t{1}, kMostPieces);
  const int64_t count = fold_ns > 0 ? std::min(PiecesDoneFirst(read_ns, fold_ns), most) : most;
  return {.count = static_cast<int32_t>(count), .ns = read_ns / static_cast<double>(count) + StartLatencyNs(kind, rows)};
}

double CostModel::TokensNs(ItemKind kind, int64_t rows, int64_t tokens) const {
  const bool dense = kind == ItemKind::kDenseTile;
  const double token_ns =
      dense ? DenseLatency(rows) * machine_.dense_token_ns : machine_.stream_token_ns * (tiles_.IsTwoColumn(rows) ? 2 : 1);
  return static_cast<double>(tiles_.ComputedTokens(kind, tokens)) * token_ns;
}

double CostModel::PieceNs(ItemKind kind, int64_t rows, int64_t tokens) const {
  return TokensNs(kind, rows, tokens) + StartLatencyNs(kind, rows);
}

double CostModel::FoldNs(ItemKind kind, int64_t rows, int64_t states) const {
  const int64_t passes = FoldPasses(rows);
  // The warps of a dense tile fold at the same time: they wait for the code once.
  if (kind == ItemKind::kDenseTile) return static_cast<double>(kFoldStartPasses + passes * states) * machine_.sm.fold_pass_ns;
  const int64_t queries = std::min(passes, CeilDiv(std::min(rows, kFoldWarpRows), group_size_));
  return (static_cast<double>(queries) + kLaterFoldPass * static_cast<double>(passes - queries)) *
         static_cast<double>(kFoldStartPasses + states) * machine_.sm.fold_pass_ns;
}

}  // namespace coppice::attention
