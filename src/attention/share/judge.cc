// Whole steps: the step as the nodes want it against the one that shares nothing, both kept as sums. docs/attention.md, "Whole
// steps". Layer: attention.
#include "attention/share/share_plan.h"

#include <algorithm>
#include <utility>

namespace coppice::attention {
namespace {

// Of a step that shares nothing: where latencies count, a step that shares must be predicted to end before this part of it. Sums
// know less than cuts.
constexpr double kLeastStepGain = 0.91, kLeastGainAsCut = 0.93;
// Outside these parts of it the sums alone decide, but for steps of so few branches and nodes, which are cut as soon as they are
// added up: they are short, and latencies are most of their time. So are those that may have a kernel of their own.
struct Bounds {
  double pays, pays_not;
};
constexpr Bounds kSurely = {0.75, 1.15}, kSurelyDeterministic = {0.4, 2.5};  // sums know least of where that mode cuts
constexpr size_t kFewRanges = 64;

}  // namespace

void SharePlan::CountItem(const StepItem& item, int64_t sign, StepShape& shape) const {
  if (item.rows == 0) return;
  const RowCosts& costs = costs_.Of(item.rows);
  const int64_t tokens = sign * item.tokens();
  shape.item_tokens += costs.row_groups * tokens;
  shape.item_misses += sign * costs.row_groups * problem_.cost.Misses(item.tokens());
  shape.item_starts += sign * costs.row_groups;
  if (costs.dense_tasks > 0) {
    shape.dense_tasks += sign * costs.dense_tasks;
    shape.dense_row_tokens += sign * costs.computed_rows * problem_.cost.ComputedTokens(item.rows, item.tokens());
    shape.dense_item_tokens += tokens;
  } else {
    shape.stream_tasks += sign;
    shape.stream_tokens += tokens;
    shape.stream_row_tokens += item.rows * tokens;
    shape.wide_stream_tasks += problem_.cost.IsWide(item.rows) ? sign : 0;
  }
  if (item.num_sets > 0 && item.items > 1) {
    shape.merges += sign * item.num_sets;
    shape.state_rows += sign * item.rows * item.items;
  }
}

void SharePlan::SetItem(Step& step, int32_t owner, const StepItem& item) {
  StepItem& kept = step.items[owner];
  if (kept == item) return;
  CountItem(kept, -1, step.shape);
  CountItem(item, 1, step.shape);
  kept = item;
  step.Change();
}

void SharePlan::SetReadTokens(NodePlan& node, int64_t tokens) {
  if (node.read_tokens == tokens) return;
  for (Step* step : {&unshared_, &wanted_}) {
    step->shape.read_tokens += tokens - node.read_tokens;
    step->shape.read_misses += problem_.cost.Misses(tokens) - problem_.cost.Misses(node.read_tokens);
    step->Change();
  }
  node.read_tokens = tokens;
}

// From the roots down: the items of the step as the nodes want them.
void SharePlan::ListItems() {
  if (!problem_.JudgesSteps()) return;
  changes_->ForEach([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = forest_->parent[n];
    int32_t begin = p == kNoParent ? 0 : nodes_[p].items_begin, above = p == kNoParent ? 0 : nodes_[p].items_above;
    StepItem shared;
    if (NodePlan::Shares(node.wanted)) {
      shared = {.rows = node.rows, .begin = std::max(begin, problem_.VisibleBegin(node.min_query)), .end = node.share_end};
      begin = node.share_end;
      above += 1;
    }
    SetItem(wanted_, n, shared);
    if (begin != node.items_begin || above != node.items_above) changes_->MarkChildren(n);
    node.items_begin = begin;
    node.items_above = above;
    for (int32_t b : forest_->BranchesAt(n)) {
      tiles_.ForEachTile(b, [&](const RowTile& tile) {
        StepItem item = unshared_.items[tile.owner];
        item.begin = std::max(item.begin, begin);
        item.items += above;
        SetItem(wanted_, tile.owner, item);
      });
    }
  });
}

// The decisions above weigh sums of work, one node at a time. The whole step also has to end sooner than if nothing were shared: a
// GPU's short one may wait longer for a merge than it saves in reading, and prices are no times.
void SharePlan::JudgeStep() {
  bool pays = true;
  if (problem_.JudgesSteps()) {
    // Its cuts depend on more than the step's items.
    if (problem_.spec.deterministic) wanted_.as_cut_ns = unshared_.as_cut_ns = 0;
    const size_t branches = forest_->ActiveBranches().size();
    const bool is_short = branches > 0 && static_cast<int32_t>(branches) <= problem_.traits.short_step_queries;
    judged_as_cut_ = pricer_ != nullptr && (is_short || branches + forest_->Preorder().size() <= kFewRanges);
    if (problem_.optional && wanted_.shape.merges > 0) pays = WantedStepPays();
    step_ns_ = StepNs(pays ? wanted_ : unshared_);
  }
  if (pays != sharing_pays_) changes_->MarkAll();
  sharing_pays_ = pays;
  changes_->ForEach([&](int32_t n) {
    NodePlan& node = nodes_[n];
    CountDecision(node, -1);
    node.decision = !pays && node.wanted == Decision::kShared ? Decision::kNoGain : node.wanted;
    CountDecision(node, 1);
  });
}

bool SharePlan::WantedStepPays() {
  if (!judged_as_cut_) {
    const bool cuts = pricer_ != nullptr;
    const Bounds surely = problem_.spec.deterministic ? kSurelyDeterministic : kSurely;
    const double least_gain = problem_.cost.has_latencies() ? kLeastStepGain : 1.0, wanted_ns = SumsNs(wanted_);
    // Its chains only make the other step longer: where sharing pays without them there is no need to look for them.
    if (wanted_ns < (cuts ? surely.pays : least_gain) * problem_.cost.StepNs(unshared_.shape, {})) return true;
    const double unshared_ns = SumsNs(unshared_);
    if (!cuts) return wanted_ns < least_gain * unshared_ns;
    if (wanted_ns < surely.pays * unshared_ns || wanted_ns > surely.pays_not * unshared_ns) return wanted_ns < unshared_ns;
    judged_as_cut_ = true;
  }
  return AsCutNs(wanted_) < kLeastGainAsCut * AsCutNs(unshared_);
}

double SharePlan::AsCutNs(Step& step) {
  if (step.as_cut_ns > 0) return step.as_cut_ns;
  int32_t count = 0;
  for (int32_t n : forest_->Preorder()) {
    const int32_t p = forest_->parent[n], above = p == kNoParent ? -1 : range_of_node_[p];
    const StepItem& item = step.items[n];
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
                             .cached_end = nodes_[n].chain_begin,
                             .planned_end = item.end,
                             .laid_out_end = item.end};
  }
  for (int32_t b : forest_->ActiveBranches()) {
    const int32_t n = forest_->branch_node[b], kv_len = forest_->kv_len[b];
    tiles_.ForEachTile(b, [&](const RowTile& tile) {
      const StepItem& item = step.items[tile.owner];
      if (!forest_->IsLive(n) && item.begin >= item.end) return;  // the shared node has all of it
      step_ranges_[count++] = {.node = n,
                               .begin = item.begin,
                               .end = item.end,
                               .rows = item.rows,
                               .num_sets = item.num_sets,
                               .set_rows = std::min(item.rows, problem_.set_queries * problem_.spec.group_size()),
                               .prompt = tile.num_queries > 1 ? b : -1,
                               .above = range_of_node_[n],
                               .cached_end = CachedEnd(nodes_[n], b),
                               .planned_end = std::max(PlannedEnd(b, item.end), item.begin),
                               .laid_out_end = tile.last ? problem_.LaidOutEnd(kv_len) : item.end};
    });
  }
  step.as_cut_ns = pricer_->StepNs({.ranges = step_ranges_.first(count),
                                    .node_parent = forest_->parent,
                                    .node_begin = forest_->begin,
                                    .node_end = forest_->end});
  return step.as_cut_ns;
}

double SharePlan::SumsNs(Step& step) {
  if (step.ns == 0) step.ns = problem_.cost.StepNs(step.shape, problem_.cost.has_latencies() ? ChainsOf(step) : StepChains{});
  return step.ns;
}

StepChains SharePlan::ChainsOf(const Step& step) {
  StepChains chains;
  const int64_t shortest = problem_.cost.ShortestStreamPiece(step.shape);
  const auto add = [&](const StepItem& item, int32_t states_above) {
    const ItemCut& cut = CutOf(item.rows, item.tokens(), shortest);
    const int32_t states = states_above + cut.pieces.count;
    const double fold_ns = states > 1 ? cut.fold_ns + states * cut.fold_state_ns : 0;
    if (cut.dense_tasks > 0) {
      chains.dense_pieces += cut.dense_tasks * cut.pieces.count;
      chains.longest_dense_ns = std::max(chains.longest_dense_ns, cut.pieces.ns + fold_ns);
    } else {
      chains.longest_stream_ns = std::max(chains.longest_stream_ns, cut.pieces.ns);
      chains.longest_fold_ns = std::max(chains.longest_fold_ns, fold_ns);
    }
    return cut.pieces.count;
  };
  const bool shares = step.shape.merges > 0;
  if (shares) {
    for (int32_t n : forest_->Preorder()) {
      const int32_t p = forest_->parent[n], above = p == kNoParent ? 0 : states_above_[p];
      // The least that a shared item's states are folded with is one of a leaf.
      states_above_[n] = above + (step.items[n].rows > 0 ? add(step.items[n], above + 1) : 0);
    }
  }
  for (int32_t b : forest_->ActiveBranches()) {
    const int32_t above = shares ? states_above_[forest_->branch_node[b]] : 0;
    if (tiles_.NumSets(b) <= problem_.tile_sets) {
      add(step.items[problem_.TileOwner(b)], above);
    } else {
      tiles_.ForEachTile(b, [&](const RowTile& tile) { add(step.items[tile.owner], above); });
    }
  }
  return chains;
}

SharePlan::ItemCut SharePlan::ComputeItemCut(int32_t rows, int32_t tokens, int64_t shortest) const {
  const double fold_ns = problem_.cost.FoldNs(rows, 0);
  return {.rows = rows,
          .tokens = tokens,
          .shortest = shortest,
          .pieces = problem_.cost.Cut(rows, tokens, shortest),
          .dense_tasks = problem_.cost.DenseTasks(rows),
          .fold_ns = fold_ns,
          .fold_state_ns = problem_.cost.FoldNs(rows, 1) - fold_ns};
}

}  // namespace coppice::attention
