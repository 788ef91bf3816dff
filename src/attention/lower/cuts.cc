// How ranges are cut along KV, along rows and into blocks of kv heads, and whether what comes of it fits. Layer: attention.
#include <algorithm>
#include <climits>
#include <utility>

#include "attention/lower/item_lowering.h"

namespace coppice::attention {

bool ItemLowering::Cut(const ForestIndex& forest, PlanChanges& changes, int32_t coarsening_level) {
  forest_ = &forest;
  changes_ = &changes;
  coarsening_level_ = coarsening_level;
  SetTargetTaskNs();
  SplitRanges();
  return Fits();
}

void ItemLowering::SetTargetTaskNs() {
  const double target_ns = TargetTaskNs(problem_.cost, shares_.ranges_ps()) * (1 << coarsening_level_);
  if (target_ns != target_task_ns_) changes_->MarkAll();
  target_task_ns_ = target_ns;
}

// Cuts ranges to the target task time and adds up the needs of the layout.
void ItemLowering::SplitRanges() {
  const CostModel& cost = problem_.cost;
  changes_->ForEach([&](int32_t n) {
    const NodePlan& node = shares_.node(n);
    const int32_t p = forest_->parent[n];
    const int32_t above = p == kNoParent ? 0 : contributions_to_[p];
    const RangeId shared = NodeRange(n);
    RangeCuts& cuts = work_.cuts[shared] = {};
    Needs needs;
    if (shares_.range(shared).rows > 0) {
      cuts.contributions_above = above;
      ShapeRange(shared);
      const bool ends_here = !forest_->IsLive(n) && node.share_end == forest_->end[n] &&
                             forest_->BranchesAt(n).size() == forest_->BranchesBelow(n).size();
      cuts.writes_states = above + cuts.pieces > 1 || !ends_here;
      needs = NeedsOf(shared);
    } else if (node.is_read_per_child()) {  // its first reader
      needs.memory_ps = Picoseconds(node.tokens * (cost.rates().read_ns - cost.RereadNs(node.tokens)));
    }
    SetNeeds(shared, needs);
    const int32_t contributions = above + cuts.pieces;
    if (contributions != std::exchange(contributions_to_[n], contributions)) changes_->MarkChildren(n);
    for (int32_t b : forest_->BranchesAt(n)) {
      tiles_.ForEachTile(b, [&](const RowTile& tile) {
        RangeCuts& own = work_.cuts[tile.range_id] = {};
        own.contributions_above = contributions;
        if (shares_.range(tile.range_id).rows > 0) ShapeRange(tile.range_id);
        const int32_t total = contributions + own.pieces;
        own.writes_states = total > 1;
        Needs own_needs = NeedsOf(tile.range_id);
        own_needs.contributions = tile.num_sets * BlockPool::Rounded(total);
        own_needs.too_deep = problem_.traits.max_set_contributions > 0 && total > problem_.traits.max_set_contributions;
        if (total > 1) own_needs.overhead_ps += Picoseconds(tile.num_sets * cost.rates().merge_ns);
        SetNeeds(tile.range_id, own_needs);
      });
    }
  });
}

ItemLowering::Needs ItemLowering::NeedsOf(RangeId range_id) const {
  const RangeCuts& cuts = work_.cuts[range_id];
  if (cuts.pieces == 0) return {};
  const ShareRange& range = shares_.range(range_id);
  const Load load = costs_.Of(range, cuts.row_groups, cuts.pieces);
  Needs needs{.memory_ps = Picoseconds(load.memory_ns),
              .compute_ps = Picoseconds(load.compute_ns),
              .overhead_ps = Picoseconds(load.overhead_ns),
              .items = BlockPool::Rounded(cuts.num_items()),
              .members = BlockPool::Rounded(range.num_sets)};
  if (cuts.writes_states) {
    const int64_t states = int64_t{cuts.pieces} * range.rows;
    // More never fit.
    needs.states = states > problem_.sizes.max_states ? states : BlockPool::Rounded(static_cast<int32_t>(states));
    needs.overhead_ps += Picoseconds(cuts.pieces * problem_.cost.StateNs(range.rows));
  }
  return needs;
}

void ItemLowering::SetNeeds(RangeId range_id, const Needs& needs) {
  total_needs_ -= work_.needs[range_id];
  work_.needs[range_id] = needs;
  total_needs_ += needs;
}

bool ItemLowering::Fits() const {
  const PlanSizes& sizes = problem_.sizes;
  return total_needs_.too_deep == 0 && total_needs_.items <= sizes.max_items && total_needs_.members <= sizes.max_members &&
         total_needs_.contributions <= sizes.max_contributions &&
         total_needs_.states <= sizes.max_states / problem_.spec.num_kv_heads;
}

Load ItemLowering::TotalLoad() const {
  return {.memory_ns = static_cast<double>(total_needs_.memory_ps) * 1e-3,
          .compute_ns = static_cast<double>(total_needs_.compute_ps) * 1e-3,
          .overhead_ns = static_cast<double>(total_needs_.overhead_ps) * 1e-3};
}

// Pieces along KV, groups along the rows, kv heads per task.
void ItemLowering::ShapeRange(RangeId range_id) {
  const CostModel& cost = problem_.cost;
  const BackendTraits& traits = problem_.traits;
  const int32_t num_kv_heads = problem_.spec.num_kv_heads;
  const ShareRange& range = shares_.range(range_id);
  RangeCuts& cuts = work_.cuts[range_id];
  const int32_t tokens = range.planned_tokens();
  const RowCosts& all_rows = costs_.Of(range.rows);
  // Of one head on one worker. Where steps are sums, what the step counts: tokens that others read too come from the cache.
  const double whole_ns = cost.has_latencies()
                              ? tokens * all_rows.token_ns + cost.machine().item_fixed_ns
                              : static_cast<double>(shares_.range_ps(range_id)) * 1e-3 * cost.workers() / num_kv_heads;
  int32_t wanted = all_rows.row_groups, groups = wanted;
  if (!traits.cuts_kv && whole_ns > groups * target_task_ns_) {
    wanted = TasksOfAtMost(whole_ns, target_task_ns_);
    // Cutting rows reads the range again, from the cache; cutting KV writes more states. Take the cheaper. Forced sharing reads
    // each token once.
    const int32_t by_rows = std::min(wanted, CeilDiv(range.rows, traits.dense_tile_rows));
    if (by_rows > groups && !problem_.options.force_sharing) {
      const double reread_ns = static_cast<double>(int64_t{tokens} * (by_rows - groups)) * cost.RereadNs(tokens);
      const double state_ns = static_cast<double>(CeilDiv(wanted, groups) - 1) * cost.StateNs(range.rows);
      if (reread_ns <= state_ns) groups = by_rows;
    }
  }
  cuts.row_groups = 1;
  cuts.group_rows = INT32_MAX;
  if (groups > 1) {
    cuts.group_rows = RoundUp(CeilDiv(range.rows, groups), traits.dense_tile_rows);
    if (traits.max_item_rows > 0) cuts.group_rows = std::min(cuts.group_rows, traits.max_item_rows);
    cuts.row_groups = 0;
    ForEachRowGroup(range_id, cuts.group_rows, [&](const RowGroup&) { ++cuts.row_groups; });
  }
  if (traits.cuts_kv) {  // its lowering cuts blocks of rows, chooses heads per task, and outside deterministic mode cuts along KV
    work_.heads_per_task[range_id] = 1;
    const bool cut = problem_.spec.deterministic && coarsening_level_ < kMaxCoarseningLevel;
    CutRange(range_id, cut ? costs_.PiecesToLower(range.rows, tokens, target_task_ns_) : 1);
    return;
  }
  const RowCosts& group = cuts.row_groups == 1 ? all_rows : costs_.Of(CeilDiv(range.rows, cuts.row_groups));
  int32_t pieces = 1;
  if (wanted > cuts.row_groups && coarsening_level_ < kMaxCoarseningLevel) {
    pieces = std::clamp(CeilDiv(wanted, cuts.row_groups), 1, std::max(1, tokens / group.shortest_piece));
  }
  CutRange(range_id, pieces);
  const double piece_ns = group.token_ns * tokens / cuts.pieces + cost.machine().item_fixed_ns;
  const double least = kMinTaskStarts * cost.machine().item_fixed_ns;
  const int32_t heads = least <= piece_ns ? 1 : static_cast<int32_t>(std::min(least / piece_ns + 1, target_task_ns_ / piece_ns));
  const int32_t most = traits.max_heads_per_task > 0 ? std::min(traits.max_heads_per_task, num_kv_heads) : num_kv_heads;
  work_.heads_per_task[range_id] = std::clamp(heads, 1, most);
}

// Cuts at absolute multiples: of the KV tile, or where deterministic mode allows (plan.h, (a) to (d)).
void ItemLowering::CutRange(RangeId range_id, int32_t pieces) {
  const BackendTraits& traits = problem_.traits;
  const ShareRange& range = shares_.range(range_id);
  RangeCuts& cuts = work_.cuts[range_id];
  cuts.unit_pieces = 0;
  if (!problem_.spec.deterministic) {
    cuts.pieces = 1;
    cuts.first_cut = cuts.chunk = 0;
    if (pieces == 1) return;
    const int32_t base = AlignDown(range.begin, traits.kv_tile);
    cuts.chunk = std::max(traits.kv_tile, RoundUp(CeilDiv(range.planned_end - base, pieces), traits.kv_tile));
    cuts.first_cut = base + cuts.chunk;
    cuts.pieces = std::max(1, CeilDiv(range.planned_end - base, cuts.chunk));
    return;
  }
  const int32_t end = range.end == kLive ? problem_.LaidOutEnd(range.max_query + 1) : range.end;
  static_cast<KvCuts&>(cuts) = CutDeterministically(
      {.begin = range.begin, .end = end, .contributions_above = cuts.contributions_above, .is_tile = problem_.IsTile(range_id)},
      pieces, problem_.share_unit, traits.cuts_kv);
}

int32_t ItemLowering::PieceBegin(RangeId range_id, int32_t piece) const {
  return work_.cuts[range_id].PieceBegin(shares_.range(range_id).begin, problem_.share_unit, piece);
}

}  // namespace coppice::attention
