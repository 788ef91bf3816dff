// Sums over the nodes below each node, upwards over the marked ones: rows, sets, consumers, visible tokens. Layer: attention.
#include "attention/share/share_plan.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace coppice::attention {

void SharePlan::Layout(Arena& arena) {
  const int32_t num_nodes = problem_.capacity.max_nodes, num_ranges = problem_.num_ranges();
  nodes_ = arena.Take<NodePlan>(num_nodes);
  ranges_ = arena.Take<ShareRange>(num_ranges);
  range_ps_ = arena.Take<int64_t>(num_ranges);
  comparison_.Layout(arena);
}

void SharePlan::RetireNode(int32_t n) {
  step_tokens_ -= nodes_[n].step_tokens;
  step_compute_ps_ -= nodes_[n].step_compute_ps;
  comparison_.SetReadTokens(nodes_[n], 0);
  CountDecision(nodes_[n], -1);
  nodes_[n] = {};
}

void SharePlan::RetireRange(RangeId range_id) {
  SetRange(range_id, {});
  comparison_.SetUnshared(range_id, {});
  comparison_.SetWanted(range_id, {});
}

void SharePlan::Sum(const ForestIndex& forest, PlanChanges& changes) {
  forest_ = &forest;
  changes_ = &changes;
  nodes_decided_ = 0;
  SumUpwards();
  SetPrices();
  if (coarsening_level_ > 0) changes.MarkAll();  // the last plan is not what its nodes wanted
  FindOnlyChildRuns();
}

// Rows, sets, consumers and query positions of changed subtrees; ancestors of a change are changed.
void SharePlan::SumUpwards() {
  changes_->ForEachUpwards([&](int32_t n) {
    SumNode(n);
    changes_->PassUp(n);
  });
}

void SharePlan::SumNode(int32_t n) {
  NodePlan& node = nodes_[n];
  node.rows = node.num_sets = node.num_consumers = 0;
  node.min_query = INT32_MAX;
  node.max_query = -1;
  const int32_t begin = problem_.AlignShare(forest_->begin[n]);
  node.share_end = forest_->IsLive(n) ? begin : problem_.AlignShare(forest_->end[n]);
  for (int32_t b : forest_->BranchesAt(n)) {
    const int32_t count = forest_->query_count[b], tiles = tiles_.NumTiles(b), first_query = forest_->kv_len[b] - count;
    node.rows += count * problem_.spec.group_size();
    node.num_sets += tiles_.NumSets(b);
    node.num_consumers += problem_.SharesWithinBranches() ? tiles : 1;
    node.min_query = std::min(node.min_query, first_query);
    node.max_query = std::max(node.max_query, forest_->kv_len[b] - 1);
    // The row tiles of a prompt chunk share what lies before the chunk.
    if (forest_->IsLive(n) && tiles > 1)
      node.share_end = std::max(begin, AlignDown(first_query, std::max(problem_.share_unit, problem_.traits.kv_tile)));
    if (!problem_.ComparesSteps()) continue;
    const bool grows = Grows(b);
    tiles_.ForEachTile(b, [&](const RowTile& tile) {
      const int32_t min_query = first_query + tile.first_query, end = min_query + tile.num_queries;
      comparison_.SetUnshared(tile.range_id, {.rows = tile.num_queries * problem_.spec.group_size(),
                                              .begin = problem_.VisibleBegin(min_query),
                                              .end = grows ? problem_.PlannedClass(forest_->begin[n], end).typical : end,
                                              .num_sets = tile.num_sets,
                                              .items = 1});
    });
  }
  for (int32_t c = forest_->first_child[n]; c >= 0; c = forest_->next_sibling[c]) {
    const NodePlan& child = nodes_[c];
    if (child.rows == 0) continue;
    node.rows += child.rows;
    node.num_sets += child.num_sets;
    node.num_consumers += 1;
    node.min_query = std::min(node.min_query, child.min_query);
    node.max_query = std::max(node.max_query, child.max_query);
  }
  // Its part of the step if everything were shared, and of any step.
  step_tokens_ -= node.step_tokens;
  step_compute_ps_ -= node.step_compute_ps;
  node.step_tokens = node.step_compute_ps = 0;
  int64_t read_tokens = 0;
  if (node.rows > 0) {
    const int32_t node_begin = forest_->begin[n], first_read = std::max(node_begin, problem_.VisibleBegin(node.min_query));
    int32_t end = forest_->end[n], typical_end = end;
    if (forest_->IsLive(n)) {
      const LengthClass lengths = problem_.PlannedClass(node_begin, node.max_query + 1);
      end = lengths.planned, typical_end = lengths.typical;
    }
    node.step_tokens = std::max(0, end - first_read);
    node.step_compute_ps = node.step_tokens * costs_.Of(node.rows).compute_ps;
    read_tokens = std::max(0, typical_end - first_read);
  }
  step_tokens_ += node.step_tokens;
  step_compute_ps_ += node.step_compute_ps;
  if (problem_.ComparesSteps()) comparison_.SetReadTokens(node, read_tokens);
}

// Tokens that the decision at a node is about: its own, and those of ancestors that only this node would read on through.
void SharePlan::FindOnlyChildRuns() {
  changes_->ForEach([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = forest_->parent[n];
    const bool only = p != kNoParent && nodes_[p].num_consumers == 1;
    node.run_begin = only ? nodes_[p].run_begin : problem_.AlignShare(forest_->begin[n]);
    node.tokens = std::max(0, node.share_end - std::max(node.run_begin, problem_.VisibleBegin(node.min_query)));
    const int32_t run_below = node.num_consumers == 1 ? node.run_begin : kLive;
    if (run_below != std::exchange(node.run_below, run_below)) changes_->MarkChildren(n);
  });
}

}  // namespace coppice::attention
