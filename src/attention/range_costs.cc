// The arithmetic of range_costs.h, by the cost model. Layer: attention.
#include "attention/range_costs.h"

namespace coppice::attention {
namespace {

// A piece is no shorter than this multiple of what cutting it off costs: on a GPU, and where steps are sums, which do not know how
// far a state has to go between cores.
constexpr double kMinPieceOverhead = 4, kMinSumPieceOverhead = 6;

}  // namespace

RowCosts RangeCosts::Compute(int32_t rows) const {
  const CostModel& cost = problem_.cost;
  const double compute_ns = cost.ComputeNs(rows);
  const double token_ns = std::max(cost.ReadNs(), compute_ns) * cost.workers() / problem_.spec.num_kv_heads;
  const double cut_ns =
      cost.task_fixed_ns() + (cost.DenseStartNs(rows) + cost.StateNs(rows)) * cost.workers() / problem_.spec.num_kv_heads;
  const double shortest = (cost.has_latencies() ? kMinPieceOverhead : kMinSumPieceOverhead) * cut_ns / token_ns;
  return {.rows = rows,
          .row_groups = static_cast<int32_t>(cost.RowGroups(rows)),
          .shortest_piece = std::max(2 * problem_.traits.kv_tile, static_cast<int32_t>(std::min(shortest, 1e9))),
          .dense_tasks = cost.DenseTasks(rows),
          .computed_rows = cost.ComputedRows(rows),
          .compute_ps = Picoseconds(compute_ns),
          .compute_ns = compute_ns,
          .token_ns = token_ns};
}

Load RangeCosts::Of(const ShareRange& range, int32_t row_groups, int32_t pieces) const {
  const CostModel& cost = problem_.cost;
  const RowCosts& costs = Of(range.rows);
  const int32_t groups = std::max(row_groups, costs.row_groups), tokens = range.planned_tokens();
  const int32_t cached = std::clamp(range.cached_end - range.begin, 0, tokens);
  Load load{.memory_ns = (tokens - cached) * cost.ReadNs(),
            .compute_ns = tokens * costs.compute_ns,
            .overhead_ns = groups * pieces * cost.ItemNs() + pieces * cost.DenseStartNs(range.rows)};
  if (cached > 0 || groups > 1)
    load.memory_ns += static_cast<double>(cached + int64_t{tokens} * (groups - 1)) * cost.RereadNs(tokens);
  return load;
}

}  // namespace coppice::attention
