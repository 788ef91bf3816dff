#include "simulate/attention_times.h"

#include <algorithm>

#include "attention/plan_problem.h"

namespace coppice::simulate {
namespace {

using attention::CostModel;
using attention::ItemKind;
using attention::StepShape;

// A step that shares must be predicted to end before this part of one that does not, where latencies count (attention/share).
constexpr double kLeastStepGain = 0.91;

// `count` items of `rows` rows over `tokens` tokens each.
void CountItems(const CostModel& cost, int64_t rows, int64_t tokens, int64_t count, StepShape* shape) {
  const int64_t groups = cost.tiles().RowGroups(rows);
  shape->item_tokens += count * groups * tokens;
  if (cost.tiles().KindOf(rows) == ItemKind::kDenseTile) {
    shape->dense_row_tokens += count * cost.tiles().ComputedRows(rows) * cost.tiles().ComputedTokens(rows, tokens);
    shape->dense_item_tokens += count * tokens;
  } else {
    shape->stream_tokens += count * tokens;
    shape->stream_row_tokens += count * rows * tokens;
  }
}

// That `count` items of `rows` rows begin.
void CountStarts(const CostModel& cost, int64_t rows, int64_t count, StepShape* shape) {
  shape->item_starts += count * cost.tiles().RowGroups(rows);
  if (cost.tiles().KindOf(rows) == ItemKind::kDenseTile) {
    shape->dense_tasks += count * cost.tiles().DenseTasks(rows);
  } else {
    shape->stream_tasks += count;
    shape->wide_stream_tasks += cost.tiles().IsWide(rows) ? count : 0;
  }
}

}  // namespace

AttentionTimes::AttentionTimes(std::span<const LayerKind> kinds, const attention::MachineModel& machine) {
  for (const LayerKind& kind : kinds) {
    const int32_t group = kind.spec.group_size(), set_queries = attention::MaxSetQueries(group);
    kinds_.push_back({.cost = CostModel(kind.spec, kind.traits, machine),
                      .layers = kind.layers,
                      .window = kind.spec.window,
                      .group = group,
                      .tile_queries = std::max(1, kind.traits.dense_tile_rows / group),
                      .cuts_kv = kind.traits.cuts_kv,
                      .set_queries = set_queries});
  }
}

// As SharePlan::DecideNode weighs it with both resources at price 1, all samples below being consumers of the node itself.
bool AttentionTimes::Shares(const Kind& kind, int32_t tokens, int32_t end, int32_t samples) const {
  if (samples < 2 || kind.window > 0) return false;
  const CostModel& cost = kind.cost;
  const int64_t rows = int64_t{samples} * kind.group;
  const double length = tokens, reread = length * cost.RereadNs(tokens);
  const double apart = reread * (samples - 1) + length * samples * cost.ComputeNs(kind.group);
  const double first_merge = samples * cost.rates().merge_ns + cost.StateNs(rows);
  const double shared = reread * static_cast<double>(cost.tiles().RowGroups(rows) - 1) +
                        static_cast<double>(cost.tiles().ComputedTokens(rows, tokens)) * cost.ComputeNs(rows) + cost.StartNs(rows) +
                        cost.StateNs(rows) + first_merge * length / std::max(1, end);
  return shared < apart;
}

void AttentionTimes::CountNode(const Kind& kind, int32_t tokens, int32_t end, int32_t samples, int64_t sign,
                               Decoding::Sums* sums) const {
  if (samples == 0 || kind.window > 0) return;
  const CostModel& cost = kind.cost;
  CountItems(cost, kind.group, tokens, sign * samples, &sums->apart);
  sums->apart.read_tokens += sign * tokens;
  sums->shared.read_tokens += sign * tokens;
  if (!Shares(kind, tokens, end, samples)) {
    CountItems(cost, kind.group, tokens, sign * samples, &sums->shared);
    return;
  }
  const int64_t rows = int64_t{samples} * kind.group;
  CountItems(cost, rows, tokens, sign, &sums->shared);
  CountStarts(cost, rows, sign, &sums->shared);
  const bool is_top = end == tokens;  // what is shared begins here for the most part: each sample's own state is folded, too
  sums->shared.state_rows += sign * rows * (is_top ? 2 : 1);
  sums->shared.merges += is_top ? sign * samples : 0;
}

void AttentionTimes::ChangeNode(int32_t tokens, int32_t end, int32_t from, int32_t to, Decoding* decoding) const {
  for (size_t k = 0; k < kinds_.size(); ++k) {
    CountNode(kinds_[k], tokens, end, from, -1, &decoding->kinds[k]);
    CountNode(kinds_[k], tokens, end, to, 1, &decoding->kinds[k]);
  }
}

void AttentionTimes::ChangeSamples(int32_t samples, int32_t prompt_tokens, Decoding* decoding) const {
  decoding->samples += samples;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const Kind& kind = kinds_[k];
    for (StepShape* const shape : {&decoding->kinds[k].shared, &decoding->kinds[k].apart}) {
      CountStarts(kind.cost, kind.group, samples, shape);
      if (kind.window == 0) continue;
      const int32_t seen = std::min(prompt_tokens, kind.window);
      CountItems(kind.cost, kind.group, seen, samples, shape);
      shape->read_tokens += int64_t{samples} * seen;
    }
  }
}

// Its row tiles read what is before the chunk, together where the backend does not cut ranges itself, and half of the chunk each.
void AttentionTimes::CountChunk(const Kind& kind, const PromptChunk& chunk, Decoding::Sums* sums) const {
  const CostModel& cost = kind.cost;
  const int32_t before = kind.window > 0 ? std::min(chunk.before, kind.window) : chunk.before;
  const int64_t tiles = CeilDiv(chunk.tokens, kind.tile_queries);
  const int64_t rows = int64_t{chunk.tokens} * kind.group, tile_rows = CeilDiv(rows, tiles);
  for (StepShape* const shape : {&sums->shared, &sums->apart}) {
    shape->read_tokens += before + chunk.tokens;
    const bool together = !kind.cuts_kv && tiles > 1 && before > 0 && shape == &sums->shared;
    const int64_t own = together ? 0 : before;
    if (together) {
      CountItems(cost, rows, before, 1, shape);
      CountStarts(cost, rows, 1, shape);
      shape->state_rows += 2 * rows;
      shape->merges += CeilDiv(chunk.tokens, kind.set_queries);
    }
    CountItems(cost, tile_rows, own + CeilDiv(chunk.tokens + kind.tile_queries, 2), tiles, shape);
    CountStarts(cost, tile_rows, tiles, shape);
  }
}

double AttentionTimes::StepNs(const Kind& kind, const StepShape& shape) const {
  attention::StepChains chains;
  if (kind.cost.has_latencies()) {
    const int64_t shortest = attention::ShortestStreamPiece(kind.cost, shape);
    const int64_t states = shape.merges > 0 ? 2 : 1;
    chains.dense_pieces = shape.dense_tasks;
    if (shape.stream_tasks > 0) {  // the longest of them: twice as long as they are in the mean
      const attention::Pieces pieces = kind.cost.Cut(kind.group, 2 * shape.stream_tokens / shape.stream_tasks, shortest);
      chains.longest_stream_ns = pieces.ns;
      if (pieces.count + states > 2) chains.longest_fold_ns = kind.cost.FoldNs(kind.group, pieces.count + states - 1);
    }
    if (shape.dense_tasks > 0) {
      const int64_t rows = kind.cost.tiles().ComputedRows(ItemKind::kDenseTile, 1);
      const attention::Pieces pieces = kind.cost.Cut(rows, shape.dense_item_tokens / shape.dense_tasks, shortest);
      chains.longest_dense_ns = pieces.ns + kind.cost.FoldNs(rows, pieces.count);
    }
  }
  return attention::StepNs(kind.cost, shape, chains);
}

AttentionStep AttentionTimes::Step(const Decoding& decoding, int64_t own_tokens, std::span<const PromptChunk> chunks) const {
  AttentionStep step;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const Kind& kind = kinds_[k];
    Decoding::Sums sums = decoding.kinds[k];
    if (decoding.samples > 0) {
      // As a sample has them in the mean.
      const int64_t own = kind.window > 0 ? std::min<int64_t>(own_tokens, decoding.samples * kind.window) : own_tokens;
      for (StepShape* const shape : {&sums.shared, &sums.apart}) {
        CountItems(kind.cost, kind.group, own, 1, shape);
        shape->read_tokens += own;
      }
    }
    for (const PromptChunk& chunk : chunks) CountChunk(kind, chunk, &sums);
    const double shared_ns = StepNs(kind, sums.shared), apart_ns = StepNs(kind, sums.apart);
    const bool shares = shared_ns < (kind.cost.has_latencies() ? kLeastStepGain : 1.0) * apart_ns;
    const auto bytes = static_cast<double>(kind.cost.kv_bytes_per_token() * kind.layers);
    step.seconds += 1e-9 * (shares ? shared_ns : apart_ns) * kind.layers;
    step.seconds_unshared += 1e-9 * apart_ns * kind.layers;
    step.bytes_read += bytes * static_cast<double>(shares ? sums.shared.item_tokens : sums.apart.item_tokens);
    step.bytes_read_unshared += bytes * static_cast<double>(sums.apart.item_tokens);
  }
  return step;
}

int64_t AttentionTimes::kv_bytes_per_token() const {
  int64_t bytes = 0;
  for (const Kind& kind : kinds_) bytes += kind.cost.kv_bytes_per_token() * kind.layers;
  return bytes;
}

}  // namespace coppice::simulate
