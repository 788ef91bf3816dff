// Where a row tile's range ends when times are predicted, and where what others read too does. Layer: attention, private.
#pragma once

#include <cstdint>

#include "attention/forest.h"
#include "attention/plan_problem.h"
#include "attention/row_tiles.h"
#include "attention/share/node_plan.h"

namespace coppice::attention {

// Whether a plan may hold for more than one length of a branch that has queries: its one row tile ends at kLive.
inline bool Grows(const ForestIndex& forest, const RowTiles& tiles, int32_t branch) {
  return forest.IsLive(forest.branch_node[branch]) && tiles.NumTiles(branch) == 1;
}
// Where a row tile of the branch that ends at `end` is taken to end.
inline int32_t PlannedEnd(const PlanProblem& problem, const ForestIndex& forest, const RowTiles& tiles, int32_t branch,
                          int32_t end) {
  const int32_t n = forest.branch_node[branch];
  return Grows(forest, tiles, branch) ? problem.PlannedClass(forest.begin[n], forest.kv_len[branch]).planned : end;
}
// Of a row tile of a branch at the node: tokens before it are read by others too.
inline int32_t CachedEnd(const NodePlan& node, const RowTiles& tiles, int32_t branch) {
  return tiles.NumTiles(branch) == 1 && node.num_consumers == 1 ? node.run_begin : node.share_end;
}

}  // namespace coppice::attention
