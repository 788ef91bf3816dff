// Sums of steps, their critical paths and their cuts. Layer: attention.
#include "attention/share/step_comparison.h"

#include <algorithm>

#include "attention/share/range_ends.h"

namespace coppice::attention {
namespace {

// Of a step that shares nothing: where latencies count, a step that shares must be predicted to end before this part of it. Sums
// know less than cuts.
constexpr double kLeastStepGain = 0.91, kLeastGainAsCut = 0.93;
// Outside these parts of it the sums alone decide, but for steps of so few branches and nodes, which are cut as soon as they are
// added up: they are short, and latencies are most of their time. So are those that may have a kernel of their own.
struct Bounds {
  double saves_time, loses_time;
};
constexpr Bounds kDecidedBySums = {0.75, 1.15},
                 kDecidedBySumsDeterministic = {0.4, 2.5};  // sums know least of where that mode cuts
constexpr size_t kFewRanges = 64;

}  // namespace

void StepComparison::Layout(Arena& arena) {
  const int32_t num_nodes = problem_.capacity.max_nodes, num_ranges = problem_.num_ranges();
  unshared_.items = arena.Take<StepItem>(num_ranges);
  wanted_.items = arena.Take<StepItem>(num_ranges);
  states_above_ = arena.Take<int32_t>(num_nodes);
  step_ranges_ = arena.Take<StepRange>(num_ranges);
  range_of_node_ = arena.Take<int32_t>(num_nodes);
}

void StepComparison::Count(const StepItem& item, int64_t sign, StepShape& shape) const {
  if (item.rows == 0) return;
  const RowCosts& costs = costs_.Of(item.rows);
  const int64_t tokens = sign * item.tokens();
  shape.item_tokens += costs.row_groups * tokens;
  shape.item_misses += sign * costs.row_groups * problem_.cost.Misses(item.tokens());
  shape.item_starts += sign * costs.row_groups;
  if (costs.dense_tasks > 0) {
    shape.dense_tasks += sign * costs.dense_tasks;
    shape.dense_row_tokens += sign * costs.computed_rows * problem_.cost.tiles().ComputedTokens(item.rows, item.tokens());
    shape.dense_item_tokens += tokens;
  } else {
    shape.stream_tasks += sign;
    shape.stream_tokens += tokens;
    shape.stream_row_tokens += item.rows * tokens;
    shape.two_column_tasks += problem_.cost.tiles().IsTwoColumn(item.rows) ? sign : 0;
  }
  if (item.num_sets > 0 && item.items > 1) {
    shape.merges += sign * item.num_sets;
    shape.state_rows += sign * item.rows * item.items;
  }
}

void StepComparison::Set(Step& step, RangeId range_id, const StepItem& item) {
  StepItem& kept = step.items[range_id];
  if (kept == item) return;
  Count(kept, -1, step.shape);
  Count(item, 1, step.shape);
  kept = item;
  step.Change();
}

void StepComparison::SetReadTokens(NodePlan& node, int64_t tokens) {
  if (node.read_tokens == tokens) return;
  for (Step* step : {&unshared_, &wanted_}) {
    step->shape.read_tokens += tokens - node.read_tokens;
    step->shape.read_misses += problem_.cost.Misses(tokens) - problem_.cost.Misses(node.read_tokens);
    step->Change();
  }
  node.read_tokens = tokens;
}

bool StepComparison::SavesTime(const ForestIndex& forest, std::span<const NodePlan> nodes) {
  // Its cuts depend on more than the step's items.
  if (problem_.spec.deterministic) wanted_.as_cut_ns = unshared_.as_cut_ns = 0;
  const size_t branches = forest.ActiveBranches().size();
  const bool is_short = branches > 0 && static_cast<int32_t>(branches) <= problem_.traits.short_step_queries;
  by_cuts_ = pricer_ != nullptr && (is_short || branches + forest.Preorder().size() <= kFewRanges);
  const bool saves_time = !problem_.optional || wanted_.shape.merges == 0 || WantedSavesTime(forest, nodes);
  Step& planned = saves_time ? wanted_ : unshared_;
  step_ns_ = by_cuts_ ? AsCutNs(forest, nodes, planned) : SumsNs(forest, planned);
  return saves_time;
}

bool StepComparison::WantedSavesTime(const ForestIndex& forest, std::span<const NodePlan> nodes) {
  if (!by_cuts_) {
    const bool cuts = pricer_ != nullptr;
    const Bounds decided_by_sums = problem_.spec.deterministic ? kDecidedBySumsDeterministic : kDecidedBySums;
    const double least_gain = problem_.cost.has_latencies() ? kLeastStepGain : 1.0, wanted_ns = SumsNs(forest, wanted_);
    // Its critical path only makes the other step longer: where sharing saves time without it there is no need to look for it.
    if (wanted_ns < (cuts ? decided_by_sums.saves_time : least_gain) * StepNs(problem_.cost, unshared_.shape, {})) return true;
    const double unshared_ns = SumsNs(forest, unshared_);
    if (!cuts) return wanted_ns < least_gain * unshared_ns;
    if (wanted_ns < decided_by_sums.saves_time * unshared_ns || wanted_ns > decided_by_sums.loses_time * unshared_ns)
      return wanted_ns < unshared_ns;
    by_cuts_ = true;
  }
  return AsCutNs(forest, nodes, wanted_) < kLeastGainAsCut * AsCutNs(forest, nodes, unshared_);
}

double StepComparison::AsCutNs(const ForestIndex& forest, std::span<const NodePlan> nodes, Step& step) {
  if (step.as_cut_ns > 0) return step.as_cut_ns;
  int32_t count = 0;
  for (int32_t n : forest.Preorder()) {
    const int32_t p = forest.parent[n], above = p == kNoParent ? -1 : range_of_node_[p];
    const StepItem& item = step.items[NodeRange(n)];
    range_of_node_[n] = item.rows > 0 ? count : above;
    if (item.rows == 0) continue;
    step_ranges_[count++] = {.node = n,
                             .begin = item.begin,
                             .end = item.end,
                             .rows = item.rows,
                             .num_sets = 0,
                             .set_rows = 0,
                             .prompt = -1,
                             .above = above,
                             .cached_end = nodes[n].run_begin,
                             .planned_end = item.end,
                             .laid_out_end = item.end};
  }
  for (int32_t b : forest.ActiveBranches()) {
    const int32_t n = forest.branch_node[b], kv_len = forest.kv_len[b];
    tiles_.ForEachTile(b, [&](const RowTile& tile) {
      const StepItem& item = step.items[tile.range_id];
      if (!forest.IsLive(n) && item.begin >= item.end) return;  // the shared node has all of it
      step_ranges_[count++] = {.node = n,
                               .begin = item.begin,
                               .end = item.end,
                               .rows = item.rows,
                               .num_sets = item.num_sets,
                               .set_rows = std::min(item.rows, problem_.set_queries * problem_.spec.group_size()),
                               .prompt = tile.num_queries > 1 ? b : -1,
                               .above = range_of_node_[n],
                               .cached_end = CachedEnd(nodes[n], tiles_, b),
                               .planned_end = std::max(PlannedEnd(problem_, forest, tiles_, b, item.end), item.begin),
                               .laid_out_end = tile.last ? problem_.LaidOutEnd(kv_len) : item.end};
    });
  }
  step.as_cut_ns = pricer_->StepNs(
      {.ranges = step_ranges_.first(count), .node_parent = forest.parent, .node_begin = forest.begin, .node_end = forest.end});
  return step.as_cut_ns;
}

double StepComparison::SumsNs(const ForestIndex& forest, Step& step) {
  if (step.ns == 0)
    step.ns = StepNs(problem_.cost, step.shape, problem_.cost.has_latencies() ? CriticalPathOf(forest, step) : CriticalPath{});
  return step.ns;
}

CriticalPath StepComparison::CriticalPathOf(const ForestIndex& forest, const Step& step) {
  CriticalPath path;
  const int64_t shortest = ShortestStreamPiece(problem_.cost, step.shape);
  const auto add = [&](const StepItem& item, int32_t states_above) {
    const ItemCut& cut = CutOf(item.rows, item.tokens(), shortest);
    const int32_t states = states_above + cut.pieces.count;
    const double fold_ns = states > 1 ? cut.fold_ns + states * cut.fold_state_ns : 0;
    if (cut.dense_tasks > 0) {
      path.dense_pieces += cut.dense_tasks * cut.pieces.count;
      path.longest_dense_ns = std::max(path.longest_dense_ns, cut.pieces.ns + fold_ns);
    } else {
      path.longest_stream_ns = std::max(path.longest_stream_ns, cut.pieces.ns);
      path.longest_fold_ns = std::max(path.longest_fold_ns, fold_ns);
    }
    return cut.pieces.count;
  };
  const bool shares = step.shape.merges > 0;
  if (shares) {
    for (int32_t n : forest.Preorder()) {
      const int32_t p = forest.parent[n], above = p == kNoParent ? 0 : states_above_[p];
      // The least that a shared item's states are folded with is one of a leaf.
      states_above_[n] = above + (step.items[NodeRange(n)].rows > 0 ? add(step.items[NodeRange(n)], above + 1) : 0);
    }
  }
  for (int32_t b : forest.ActiveBranches()) {
    const int32_t above = shares ? states_above_[forest.branch_node[b]] : 0;
    if (tiles_.NumSets(b) <= problem_.tile_sets) {
      add(step.items[problem_.TileRange(b)], above);
    } else {
      tiles_.ForEachTile(b, [&](const RowTile& tile) { add(step.items[tile.range_id], above); });
    }
  }
  return path;
}

StepComparison::ItemCut StepComparison::ComputeItemCut(int32_t rows, int32_t tokens, int64_t shortest) const {
  const double fold_ns = problem_.cost.FoldNs(rows, 0);
  return {.rows = rows,
          .tokens = tokens,
          .shortest = shortest,
          .pieces = problem_.cost.Cut(rows, tokens, shortest),
          .dense_tasks = problem_.cost.tiles().DenseTasks(rows),
          .fold_ns = fold_ns,
          .fold_state_ns = problem_.cost.FoldNs(rows, 1) - fold_ns};
}

}  // namespace coppice::attention
