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
  dense_min_rows_ = std::max(traits.dense_min_rows, 1);
  wide_stream_rows_ = traits.wide_stream_rows > 0 ? traits.wide_stream_rows : CeilDiv(dense_min_rows_, 2);
  row_unit_ = traits.dense_row_unit > 0 ? traits.dense_row_unit : dense_min_rows_;
  tile_rows_ = std::max(traits.dense_tile_rows, 1);
  lanes_ = std::max(traits.stream_lanes, 1);
  team_lanes_ = traits.team_lanes;
  kv_tile_ = std::max(traits.kv_tile, 1);
  kv_heads_ = spec.num_kv_heads;
  group_size_ = spec.group_size();
  latencies_ = machine.launch_ns > 0;
  machine_ = machine;
  dense_latency_ = traits.dense_latency;
  max_item_rows_ = traits.max_item_rows;
  workers_ = std::max(traits.workers, 1);
  read_ns_ = 1e9 * static_cast<double>(kv_bytes_) / machine.read_bytes_per_s;
  const double cache_bytes_per_s = machine.cache_bytes_per_s * traits.stream_cache_share;
  cache_ns_ = 1e9 * static_cast<double>(kv_bytes_) / std::max(cache_bytes_per_s, machine.read_bytes_per_s);
  const double cache_tokens = machine.cache_bytes / static_cast<double>(kv_bytes_);
  cache_tokens_ = std::isinf(cache_tokens) ? std::numeric_limits<int64_t>::max() : std::llround(cache_tokens);
  const double row_flops = 4.0 * spec.num_kv_heads * static_cast<double>(computed_dim);
  dense_ns_ = 1e9 * row_flops / machine.dense_flops_per_s;
  stream_ns_ = 1e9 * row_flops / machine.stream_flops_per_s;
  if (machine.stream_kv_bytes_per_s > 0) stream_kv_ns_ = 1e9 * static_cast<double>(kv_bytes_) / machine.stream_kv_bytes_per_s;
  state_ns_ = 1e9 * 2.0 * static_cast<double>(state_bytes_) / machine.state_bytes_per_s;
  task_fixed_ns_ = machine.item_fixed_ns;
  item_ns_ = machine.item_fixed_ns * spec.num_kv_heads / workers_;
  dense_start_ns_ = machine.dense_task_ns * spec.num_kv_heads / workers_;
  merge_ns_ = machine.merge_fixed_ns * spec.num_kv_heads / workers_;
}

double CostModel::RereadNs(int64_t tokens) const {
  if (tokens <= 0) return cache_ns_;
  const double hit = std::min(1.0, static_cast<double>(cache_tokens_) / static_cast<double>(tokens));
  return hit * cache_ns_ + (1.0 - hit) * read_ns_;
}

double CostModel::ComputeNs(int64_t rows) const {
  if (KindOf(rows) == ItemKind::kStreamTile) return stream_kv_ns_ + static_cast<double>(rows) * stream_ns_;
  return static_cast<double>(ComputedRows(rows)) * dense_ns_;
}

double CostModel::StartNs(int64_t rows) const {
  if (!latencies_) return static_cast<double>(RowGroups(rows)) * item_ns_ + DenseStartNs(rows);
  if (KindOf(rows) == ItemKind::kStreamTile) return machine_.stream_task_ns * kv_heads_ / (workers_ * lanes_);
  return static_cast<double>(DenseTasks(rows)) * machine_.unhidden_start * machine_.dense_task_ns * kv_heads_ / workers_;
}

int64_t CostModel::ComputedRows(ItemKind kind, int64_t rows) const {
  return kind == ItemKind::kStreamTile ? rows : RoundUp(rows, row_unit_);
}

int64_t CostModel::ComputedTokens(ItemKind kind, int64_t tokens) const {
  return !latencies_ || kind == ItemKind::kStreamTile ? tokens : RoundUp(tokens, kv_tile_);
}

int64_t CostModel::ShortestStreamPiece(const StepShape& shape) const {
  const double tokens_per_lane = static_cast<double>(shape.stream_tokens * kv_heads_) / (int64_t{workers_} * lanes_);
  return StreamPiecesOf(tokens_per_lane, lanes_).shortest;
}

Pieces CostModel::Cut(int64_t rows, int64_t tokens, int64_t shortest_stream_piece) const {
  const ItemKind kind = KindOf(rows);
  const bool dense = kind == ItemKind::kDenseTile;
  const int64_t shortest = dense ? kv_tile_ : shortest_stream_piece;
  const double read_ns = TokensNs(kind, rows, tokens);
  const double fold_ns = FoldNs(rows, 2) - FoldNs(rows, 1);
  const int64_t most = std::clamp(tokens / shortest, int64_t{1}, kMostPieces);
  const int64_t count = fold_ns > 0 ? std::min(PiecesDoneFirst(read_ns, fold_ns), most) : most;
  return {.count = static_cast<int32_t>(count), .ns = read_ns / static_cast<double>(count) + StartLatencyNs(kind, rows)};
}

double CostModel::TokensNs(ItemKind kind, int64_t rows, int64_t tokens) const {
  const bool dense = kind == ItemKind::kDenseTile;
  const double token_ns = dense ? DenseLatency(rows) * machine_.dense_token_ns : machine_.stream_token_ns * (IsWide(rows) ? 2 : 1);
  return static_cast<double>(ComputedTokens(kind, tokens)) * token_ns;
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

double CostModel::StepNs(const StepShape& shape, const StepChains& chains) const {
  if (!latencies_) {
    const auto reread = static_cast<double>(shape.reread_tokens());
    const double merge = static_cast<double>(shape.merges) * merge_ns_ + static_cast<double>(shape.state_rows) * state_ns_;
    const auto misses = static_cast<double>(std::max<int64_t>(0, shape.item_misses - shape.read_misses));
    const double memory = static_cast<double>(shape.read_tokens) * read_ns_ + reread * cache_ns_ + misses * (read_ns_ - cache_ns_);
    const double compute = static_cast<double>(shape.dense_row_tokens) * dense_ns_ +
                           static_cast<double>(shape.stream_row_tokens) * stream_ns_ +
                           static_cast<double>(shape.stream_tokens) * stream_kv_ns_;
    return std::max(memory, compute) + static_cast<double>(shape.item_starts) * item_ns_ +
           static_cast<double>(shape.dense_tasks) * dense_start_ns_ + merge;
  }
  return RunsAsTeams(shape) ? CutTeamsStepNs(shape) : LanesStepNs(shape, chains);
}

double CostModel::LanesStepNs(const StepShape& shape, const StepChains& chains) const {
  const double heads = kv_heads_;
  const auto reread = static_cast<double>(shape.reread_tokens());
  const double merge = static_cast<double>(shape.merges) * merge_ns_ + static_cast<double>(shape.state_rows) * state_ns_;
  const double dense_memory = static_cast<double>(shape.dense_item_tokens) * read_ns_;
  const double streamed = static_cast<double>(std::max<int64_t>(0, shape.read_tokens - shape.dense_item_tokens)) * read_ns_;
  const double memory = streamed + machine_.sm.slow_reads * std::min(streamed, machine_.sm.slow_ns) + reread * cache_ns_;
  const double stream = std::max(StreamNs(shape), chains.longest_stream_ns);
  const double dense =
      static_cast<double>(shape.dense_tasks) * heads * machine_.unhidden_start * machine_.dense_task_ns / workers_ +
      std::max(static_cast<double>(shape.dense_row_tokens) * dense_ns_, dense_memory);
  // An SM computes its dense tasks, then streams; those without one stream from the start.
  const bool spare = static_cast<double>(chains.dense_pieces) * heads < workers_;
  const double work = spare ? std::max(dense_memory + memory, dense + stream) : dense + std::max(memory, stream);
  return machine_.launch_ns + std::max(work + merge + chains.longest_fold_ns, chains.longest_dense_ns);
}

double CostModel::StreamNs(const StepShape& shape) const {
  return static_cast<double>(shape.stream_tasks) * kv_heads_ * machine_.stream_task_ns / (workers_ * lanes_) +
         static_cast<double>(shape.stream_tokens) * cache_ns_;
}

bool CostModel::RunsAsTeams(const StepShape& shape) const {
  return team_lanes_ > 0 && shape.dense_tasks == 0 &&
         TeamsRead(shape.stream_tasks * kv_heads_, shape.stream_tokens * kv_heads_, workers_);
}

int64_t CostModel::TeamSteps(int64_t tokens) const { return CeilDiv(tokens, int64_t{kStreamStepTokens} * team_lanes_); }

double CostModel::CutTeamsStepNs(const StepShape& shape) const {
  const int64_t tasks = std::max<int64_t>(shape.stream_tasks, 1);
  const int64_t whole = shape.stream_tokens / tasks, pieces = workers_ / (tasks * kv_heads_);
  const int64_t piece = TeamPiece(whole, EvenTeamPiece(whole, pieces), shape.merges > 0, team_lanes_, machine_.sm);
  return TeamsStepNs(shape, std::min(whole, piece), shape.merges > 0 || piece < whole);
}

double CostModel::TeamsStepNs(const StepShape& shape, int64_t piece_tokens, bool merges) const {
  const SmRates& sm = machine_.sm;
  const bool wide = shape.wide_stream_tasks > 0;
  const double memory = static_cast<double>(shape.read_tokens) * read_ns_;
  const double reads = memory + sm.team_slow_reads * std::min(memory, sm.team_slow_ns) +
                       sm.team_unhidden_reread * static_cast<double>(shape.reread_tokens()) * cache_ns_;
  const double steps = static_cast<double>(TeamSteps(piece_tokens)) * (wide ? sm.team_wide_step_ns : sm.team_step_ns);
  return sm.team_launch_ns + (wide ? sm.team_wide_task_ns : 0) + std::max(reads, steps) + (merges ? sm.team_merge_ns : 0);
}

double CostModel::RereadPrice(const StepShape& shape) const {
  const double reread = static_cast<double>(shape.reread_tokens()) * cache_ns_;
  if (reread <= 0) return machine_.unhidden_reread;
  return std::clamp((StreamNs(shape) - static_cast<double>(shape.read_tokens) * read_ns_) / reread, machine_.unhidden_reread, 1.0);
}

}  // namespace coppice::attention
