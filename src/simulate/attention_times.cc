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
    shape->two_column_tasks += cost.tiles().IsTwoColumn(rows) ? count : 0;
  }
}

// Of `tokens` tokens that are read once for so many rows; 0 rows: nothing.
int64_t ComputePs(const CostModel& cost, int64_t rows, int64_t tokens) {
  return rows == 0 ? 0 : tokens * attention::Picoseconds(cost.ComputeNs(rows));
}

// A machine on which a token takes the part of its time that it takes on one of the ranks that divide tokens. Tasks, states and
// merges take what they took.
attention::MachineModel WithTokensOf(int32_t ranks, attention::MachineModel machine) {
  for (double* const rate : {&machine.read_bytes_per_s, &machine.cache_bytes_per_s, &machine.cache_bytes,
                             &machine.dense_flops_per_s, &machine.stream_flops_per_s, &machine.stream_kv_bytes_per_s}) {
    *rate *= ranks;
  }
  machine.dense_token_ns /= ranks;
  machine.stream_token_ns /= ranks;
  return machine;
}

}  // namespace

AttentionTimes::AttentionTimes(std::span<const LayerKind> kinds, const attention::MachineModel& machine) {
  for (const LayerKind& kind : kinds) {
    const int32_t group = kind.spec.group_size(), set_queries = attention::MaxSetQueries(group);
    const int32_t tile_sets = std::max(1, kind.traits.dense_tile_rows / (set_queries * group));
    kinds_.push_back({.cost = CostModel(kind.spec, kind.traits, WithTokensOf(kind.token_ranks, machine)),
                      .layers = kind.layers,
                      .window = kind.spec.window,
                      .group = group,
                      .token_ranks = kind.token_ranks,
                      .exchange = kind.exchange,
                      .tile_queries = tile_sets * set_queries,
                      .set_queries = set_queries,
                      .kv_tile = kind.traits.kv_tile,
                      .tile_rows = kind.traits.dense_tile_rows,
                      .cuts_kv = kind.traits.cuts_kv});
    kinds_.back().num_prices = kinds_.back().cost.has_latencies() ? 1 : attention::kPrices.size();
  }
}

// ------------------------------------------------------------------------------------------------------------------------ nodes

AttentionTimes::Readers& AttentionTimes::Readers::Add(const Readers& other, int64_t times) {
  rows += times * other.rows, sets += times * other.sets, items += times * other.items;
  dense_rows += times * other.dense_rows, dense_items += times * other.dense_items;
  stream_items += times * other.stream_items, stream_rows += times * other.stream_rows;
  compute_ps += times * other.compute_ps;
  return *this;
}

AttentionTimes::Readers AttentionTimes::ItemOf(const Kind& kind, int64_t rows, int64_t sets) {
  if (rows == 0) return {};
  const CostModel& cost = kind.cost;
  Readers item{.rows = rows, .sets = sets, .items = cost.tiles().RowGroups(rows), .compute_ps = ComputePs(cost, rows, 1)};
  if (cost.tiles().KindOf(rows) == ItemKind::kDenseTile) {
    item.dense_rows = cost.tiles().ComputedRows(rows);
    item.dense_items = 1;
  } else {
    item.stream_items = 1;
    item.stream_rows = rows;
  }
  return item;
}

AttentionTimes::Readers AttentionTimes::SamplesOf(const Kind& kind, int64_t samples) {
  return Readers{}.Add(ItemOf(kind, kind.group, 1), samples);
}

AttentionTimes::Readers AttentionTimes::Above(const Kind& kind, const Readers& below, bool shares) {
  return shares ? ItemOf(kind, below.rows, below.sets) : below;
}

// As SharePlan::DecideNode weighs it.
bool AttentionTimes::Shares(const Kind& kind, int64_t tokens, int64_t end, const Readers& readers, size_t prices) {
  if (readers.items < 2 || tokens == 0 || kind.window > 0) return false;
  const CostModel& cost = kind.cost;
  const auto [memory_price, compute_price] = attention::kPrices[prices];
  const auto length = static_cast<double>(tokens);
  const double reread = memory_price * length * cost.RereadNs(tokens);
  const double apart =
      reread * static_cast<double>(readers.items - 1) + compute_price * length * 1e-3 * static_cast<double>(readers.compute_ps);
  const double first_merge = static_cast<double>(readers.sets) * cost.rates().merge_ns + cost.StateNs(readers.rows);
  const double shared =
      reread * static_cast<double>(cost.tiles().RowGroups(readers.rows) - 1) +
      compute_price * static_cast<double>(cost.tiles().ComputedTokens(readers.rows, tokens)) * cost.ComputeNs(readers.rows) +
      cost.StartNs(readers.rows) + cost.StateNs(readers.rows) +
      first_merge * length / static_cast<double>(std::max<int64_t>(1, end));
  return shared < apart;
}

// Counts the items that read the node: one for all, or those below.
void AttentionTimes::CountNode(const Kind& kind, int64_t tokens, int64_t end, const Readers& readers, bool shares, int64_t sign,
                               StepShape* shape) {
  const auto& [rows, sets, items, dense_rows, dense_items, stream_items, stream_rows, _] = Above(kind, readers, shares);
  shape->item_tokens += sign * items * tokens;
  shape->dense_row_tokens += sign * dense_rows * kind.cost.tiles().ComputedTokens(ItemKind::kDenseTile, tokens);
  shape->dense_item_tokens += sign * dense_items * tokens;
  shape->stream_tokens += sign * stream_items * tokens;
  shape->stream_row_tokens += sign * stream_rows * tokens;
  if (!shares) return;
  CountStarts(kind.cost, rows, sign, shape);
  const bool is_top = end == tokens;  // what is shared begins here for the most part: each one's own state is folded, too
  shape->state_rows += sign * rows * (is_top ? 2 : 1);
  shape->merges += is_top ? sign * sets : 0;
}

// Of samples that decode below a node, at the node.
AttentionTimes::Readers AttentionTimes::ReadersAt(size_t kind, size_t prices, int32_t samples, int32_t reads,
                                                  const Decoding& decoding) const {
  return reads < 0 ? SamplesOf(kinds_[kind], samples) : decoding.readers[reads * kinds_.size() + kind][prices];
}

// From the leaf upwards: what of a change a node's parent sees depends on whether the node is shared.
void AttentionTimes::ChangePath(std::span<const PathNode> path, int32_t samples, Decoding* decoding) const {
  struct Seen {
    ByPrices<Readers> before, after;  // reads on above the node below
  };
  std::vector<Seen> seen(kinds_.size());
  for (size_t k = 0; k < kinds_.size(); ++k) seen[k].after.fill(SamplesOf(kinds_[k], samples));
  for (size_t i = path.size(); i-- > 0;) {
    const auto& [tokens, end, before, reads] = path[i];
    const int32_t after = before + samples, place_before = *reads;
    if (after >= 2 && *reads < 0) {
      if (decoding->free_places.empty()) {
        *reads = static_cast<int32_t>(decoding->readers.size() / kinds_.size());
        decoding->readers.resize(decoding->readers.size() + kinds_.size());
      } else {
        *reads = decoding->free_places.back();
        decoding->free_places.pop_back();
      }
    }
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const Kind& kind = kinds_[k];
      if (kind.window > 0) continue;
      Decoding::Sums& sums = decoding->kinds[k];
      CountNode(kind, tokens, end, SamplesOf(kind, samples), false, 1, &sums.apart);
      const int64_t distinct = int64_t{(after > 0) - (before > 0)} * tokens;
      sums.apart.read_tokens += distinct;
      sums.compute_ps +=
          ComputePs(kind.cost, int64_t{after} * kind.group, tokens) - ComputePs(kind.cost, int64_t{before} * kind.group, tokens);
      for (size_t p = 0; p < kind.num_prices; ++p) {
        const Readers old_readers = ReadersAt(k, p, before, place_before, *decoding);
        Readers readers = old_readers;
        readers.Add(seen[k].before[p], -1).Add(seen[k].after[p]);
        const bool shared = Shares(kind, tokens, end, old_readers, p), shares = Shares(kind, tokens, end, readers, p);
        CountNode(kind, tokens, end, old_readers, shared, -1, &sums.shared[p]);
        CountNode(kind, tokens, end, readers, shares, 1, &sums.shared[p]);
        sums.shared[p].read_tokens += distinct;
        seen[k].before[p] = Above(kind, old_readers, shared);
        seen[k].after[p] = Above(kind, readers, shares);
        if (after >= 2) decoding->readers[*reads * kinds_.size() + k][p] = readers;
      }
    }
    if (after < 2 && *reads >= 0) {
      decoding->free_places.push_back(*reads);
      *reads = -1;
    }
  }
}

void AttentionTimes::ChangeSamples(int32_t samples, int32_t prompt_tokens, Decoding* decoding) const {
  decoding->samples += samples;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const Kind& kind = kinds_[k];
    const auto count = [&](StepShape* shape) {
      CountStarts(kind.cost, kind.group, samples, shape);
      if (kind.window == 0) return;
      const int32_t seen = std::min(prompt_tokens, kind.window);
      CountItems(kind.cost, kind.group, seen, samples, shape);
      shape->read_tokens += int64_t{samples} * seen;
    };
    Decoding::Sums& sums = decoding->kinds[k];
    count(&sums.apart);
    for (size_t p = 0; p < kind.num_prices; ++p) count(&sums.shared[p]);
  }
}

// ---------------------------------------------------------------------------------------------------------------------- prompts

size_t AttentionTimes::PricesOf(const Kind& kind, const Distinct& step) {
  if (kind.num_prices == 1) return 0;
  const attention::ResourcePrices prices = attention::PricesOf(kind.cost, step.tokens, step.compute_ps);
  return static_cast<size_t>(std::ranges::find(attention::kPrices, prices) - attention::kPrices.begin());
}

// The row tiles of a chunk.
AttentionTimes::Readers AttentionTimes::TilesOf(const Kind& kind, const PromptChunk& chunk) {
  const int32_t count = CeilDiv(chunk.tokens, kind.tile_queries), last = chunk.tokens - (count - 1) * kind.tile_queries;
  const auto tile = [&](int32_t queries) {
    return ItemOf(kind, int64_t{queries} * kind.group, CeilDiv(queries, kind.set_queries));
  };
  return tile(last).Add(tile(kind.tile_queries), count - 1);
}

// Each row tile reads `before` tokens before the chunk, and the chunk up to its own end.
void AttentionTimes::CountTiles(const Kind& kind, const PromptChunk& chunk, int32_t before, StepShape* shape) {
  for (int32_t first = 0; first < chunk.tokens; first += kind.tile_queries) {
    const int32_t queries = std::min(kind.tile_queries, chunk.tokens - first);
    const int32_t seen = kind.window > 0 ? std::min(before + first, kind.window - 1) : before + first;
    CountItems(kind.cost, int64_t{queries} * kind.group, seen + queries, 1, shape);
    CountStarts(kind.cost, int64_t{queries} * kind.group, 1, shape);
  }
}

std::vector<AttentionTimes::SharedRange> AttentionTimes::CountPrompts(size_t k, const StepPrompts& prompts, size_t prices,
                                                                      const Decoding& decoding, StepShape* shared) const {
  const Kind& kind = kinds_[k];
  std::vector<SharedRange> ranges;
  std::vector<Readers> of_chunks;  // what reads on above the chunk's own part
  for (const PromptChunk& chunk : prompts.chunks) {
    // Row tiles may read together what whole blocks of KV before the chunk hold.
    const int32_t above = chunk.before - chunk.alone;
    const int32_t block_end = std::max(above, attention::AlignDown(chunk.before, kind.kv_tile));
    const Readers tiles = TilesOf(kind, chunk);
    const bool shares = !kind.cuts_kv && Shares(kind, block_end - above, block_end, tiles, prices);
    if (shares) {
      CountNode(kind, block_end - above, block_end, tiles, true, 1, shared);
      ranges.push_back({.tokens = block_end - above, .rows = tiles.rows});
    }
    CountTiles(kind, chunk, kind.window > 0 ? chunk.before : chunk.before - (shares ? block_end : above), shared);
    of_chunks.push_back(Above(kind, tiles, shares));
  }
  if (kind.window > 0) return ranges;
  std::vector<Readers> added(prompts.nodes.size());  // to what decoding samples have at the node
  for (size_t n = prompts.nodes.size(); n-- > 0;) {
    const SharedNode& node = prompts.nodes[n];
    for (const int32_t c : node.chunks) added[n].Add(of_chunks[c]);
    const Readers decoding_only = ReadersAt(k, prices, node.samples, node.reads, decoding);
    const Readers all = Readers(decoding_only).Add(added[n]);
    const bool shared_before = Shares(kind, node.tokens, node.end, decoding_only, prices);
    const bool shares = Shares(kind, node.tokens, node.end, all, prices);
    CountNode(kind, node.tokens, node.end, decoding_only, shared_before, -1, shared);  // as ChangePath has counted it
    CountNode(kind, node.tokens, node.end, all, shares, 1, shared);
    if (shares) ranges.push_back({.tokens = node.tokens, .rows = all.rows});
    if (node.parent >= 0) added[node.parent].Add(Above(kind, all, shares)).Add(Above(kind, decoding_only, shared_before), -1);
  }
  return ranges;
}

// Tokens that long items read again, from the cache, since plans cut their rows for the workers' sake (ItemLowering::ShapeRange).
int64_t AttentionTimes::TokensReadByRowGroups(const Kind& kind, std::span<const SharedRange> ranges, double step_ns) {
  if (kind.cuts_kv || ranges.empty()) return 0;
  const CostModel& cost = kind.cost;
  const double target_task_ns = attention::TargetTaskNs(cost, attention::Picoseconds(step_ns));
  int64_t tokens_again = 0;
  for (const auto& [tokens, rows] : ranges) {
    const auto length = static_cast<double>(tokens);
    const double range_ns = length * std::max(cost.rates().read_ns, cost.ComputeNs(rows)) + cost.StartNs(rows);
    const double alone_ns = range_ns * cost.workers() / cost.kv_heads();  // of one head on one worker
    if (alone_ns <= target_task_ns) continue;
    const int32_t wanted = attention::TasksOfAtMost(alone_ns, target_task_ns);
    const int64_t groups = std::min<int64_t>(wanted, CeilDiv<int64_t>(rows, kind.tile_rows));
    if (length * static_cast<double>(groups - 1) * cost.RereadNs(tokens) > (wanted - 1) * cost.StateNs(rows)) continue;
    const int64_t group_rows = RoundUp<int64_t>(CeilDiv<int64_t>(rows, groups), kind.tile_rows);
    tokens_again += (CeilDiv<int64_t>(rows, group_rows) - 1) * tokens;
  }
  return tokens_again;
}

// ------------------------------------------------------------------------------------------------------------------------- steps

double AttentionTimes::StepNs(const Kind& kind, const StepShape& shape) const {
  attention::CriticalPath path;
  if (kind.cost.has_latencies()) {
    const int64_t shortest = attention::ShortestStreamPiece(kind.cost, shape);
    const int64_t states = shape.merges > 0 ? 2 : 1;
    path.dense_pieces = shape.dense_tasks;
    if (shape.stream_tasks > 0) {  // the longest of them: twice as long as they are in the mean
      const attention::Pieces pieces = kind.cost.Cut(kind.group, 2 * shape.stream_tokens / shape.stream_tasks, shortest);
      path.longest_stream_ns = pieces.ns;
      if (pieces.count + states > 2) path.longest_fold_ns = kind.cost.FoldNs(kind.group, pieces.count + states - 1);
    }
    if (shape.dense_tasks > 0) {
      const int64_t rows = kind.cost.tiles().ComputedRows(ItemKind::kDenseTile, 1);
      const attention::Pieces pieces = kind.cost.Cut(rows, shape.dense_item_tokens / shape.dense_tasks, shortest);
      path.longest_dense_ns = pieces.ns + kind.cost.FoldNs(rows, pieces.count);
    }
  }
  return attention::StepNs(kind.cost, shape, path);
}

// Of what ChangePath has not counted.
AttentionTimes::Distinct AttentionTimes::DistinctOf(const Kind& kind, int64_t own_tokens, const StepPrompts& prompts) {
  Distinct distinct{.tokens = own_tokens, .compute_ps = ComputePs(kind.cost, kind.group, own_tokens)};
  for (const PromptChunk& chunk : prompts.chunks) {
    const int32_t before = kind.window > 0 ? std::min(chunk.before, kind.window) : chunk.alone;
    distinct.tokens += before + chunk.tokens;
    distinct.compute_ps += ComputePs(kind.cost, int64_t{chunk.tokens} * kind.group, before + chunk.tokens);
  }
  if (kind.window > 0) return distinct;
  std::vector<int64_t> queries(prompts.nodes.size());  // of chunks below
  for (size_t n = prompts.nodes.size(); n-- > 0;) {
    const SharedNode& node = prompts.nodes[n];
    for (const int32_t c : node.chunks) queries[n] += prompts.chunks[c].tokens;
    if (node.parent >= 0) queries[node.parent] += queries[n];
    distinct.tokens += node.samples == 0 ? node.tokens : 0;
    distinct.compute_ps += ComputePs(kind.cost, (node.samples + queries[n]) * kind.group, node.tokens) -
                           ComputePs(kind.cost, int64_t{node.samples} * kind.group, node.tokens);
  }
  return distinct;
}

AttentionStep AttentionTimes::Step(const Decoding& decoding, int64_t own_tokens, const StepPrompts& prompts) const {
  AttentionStep step;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const Kind& kind = kinds_[k];
    const Decoding::Sums& sums = decoding.kinds[k];
    // As a sample has them in the mean.
    const int64_t own = kind.window > 0 ? std::min<int64_t>(own_tokens, decoding.samples * kind.window) : own_tokens;
    const Distinct distinct = DistinctOf(kind, own, prompts);
    StepShape apart = sums.apart;
    apart.read_tokens += distinct.tokens;
    const size_t prices = PricesOf(kind, {.tokens = apart.read_tokens, .compute_ps = sums.compute_ps + distinct.compute_ps});
    StepShape shared = sums.shared[prices];
    shared.read_tokens += distinct.tokens;
    for (StepShape* const shape : {&shared, &apart}) CountItems(kind.cost, kind.group, own, 1, shape);
    for (const PromptChunk& chunk : prompts.chunks) CountTiles(kind, chunk, chunk.before, &apart);
    const std::vector<SharedRange> ranges = CountPrompts(k, prompts, prices, decoding, &shared);
    if (!ranges.empty()) shared.item_tokens += TokensReadByRowGroups(kind, ranges, StepNs(kind, shared));
    const double shared_ns = StepNs(kind, shared), apart_ns = StepNs(kind, apart);
    const bool shares = shared_ns < (kind.cost.has_latencies() ? kLeastStepGain : 1.0) * apart_ns;
    const auto bytes = static_cast<double>(kind.cost.kv_bytes_per_token() * kind.layers) / kind.token_ranks;
    int64_t rows = decoding.samples;
    for (const PromptChunk& chunk : prompts.chunks) rows += chunk.tokens;
    const double exchange_s = kind.token_ranks > 1 && rows > 0 ? kind.exchange.Seconds(static_cast<double>(rows)) : 0;
    step.seconds += (1e-9 * (shares ? shared_ns : apart_ns) + exchange_s) * kind.layers;
    step.seconds_unshared += (1e-9 * apart_ns + exchange_s) * kind.layers;
    step.bytes_read += bytes * static_cast<double>(shares ? shared.item_tokens : apart.item_tokens);
    step.bytes_read_unshared += bytes * static_cast<double>(apart.item_tokens);
  }
  return step;
}

int64_t AttentionTimes::kv_bytes_per_token() const {
  int64_t bytes = 0;
  for (const Kind& kind : kinds_) bytes += kind.cost.kv_bytes_per_token() * kind.layers / kind.token_ranks;
  return bytes;
}

}  // namespace coppice::simulate
