// A plan's statistics. A decode step asks for them after each Update, so the plan is walked only for counts that depend on
// lengths in other ways than by their sum: windows, draft masks, and items laid out ahead of a branch's length. Distinct tokens
// are summed over the nodes, of which there are two a branch at most. Layer: attention.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "attention/plan.h"

namespace coppice::attention {
namespace {

int64_t Dot(std::span<const int32_t> weights, std::span<const int32_t> lengths) {
  int64_t sum = 0;
  for (size_t i = 0; i < lengths.size(); ++i) sum += int64_t{weights[i]} * lengths[i];
  return sum;
}

}  // namespace

int64_t Planner::TokensRead() const {
  const std::span<const int32_t> lengths = forest_.view().branch_kv_len;
  if (problem_.spec.window == 0 && !items_.reads_ahead()) return items_.closed_reads() + Dot(items_.open_reads(), lengths);
  const PlanView plan = View();
  int64_t tokens = 0;
  const auto count_item = [&](int32_t id) {
    const WorkItem& item = plan.items[id];
    int32_t first_seen = 0;
    if (problem_.spec.window > 0) {
      first_seen = INT32_MAX;
      for (int32_t set : plan.members.subspan(item.member_begin, item.member_count)) {
        const MergeSet& s = plan.merge_sets[set];
        const int32_t first_query = lengths[s.branch] - forest_.now().query_count[s.branch] + s.query_begin;
        first_seen = std::min(first_seen, std::max(0, first_query - problem_.spec.window + 1));
      }
    }
    // A range laid out ahead of a branch's length is read up to the length; a shared one is within every member's.
    const int32_t end = std::min(item.kv_end, lengths[item.page_row]);
    tokens += std::max(0, end - std::max(item.kv_begin, first_seen));
  };
  std::ranges::for_each(plan.compute_queue, count_item);
  std::ranges::for_each(plan.bandwidth_queue, count_item);
  return tokens;
}

int64_t Planner::TokensReadUnshared() const {
  const std::span<const int32_t> lengths = forest_.view().branch_kv_len;
  if (problem_.spec.window == 0) return Dot(tiles_.tiles_of_branch(), lengths) - tiles_.tile_tokens_before();
  int64_t tokens = 0;
  for (int32_t b : forest_.now().ActiveBranches()) {
    tiles_.ForEachTile(b, [&](const RowTile& tile) {
      const int32_t first_query = lengths[b] - forest_.now().query_count[b] + tile.first_query;
      tokens += tile.num_queries + std::min(first_query, problem_.spec.window - 1);
    });
  }
  return tokens;
}

int64_t Planner::TokensDistinct() const {
  const ForestIndex& forest = forest_.now();
  const std::span<const int32_t> lengths = forest_.view().branch_kv_len;
  int64_t tokens = 0;
  for (const int32_t n : forest.Preorder()) {
    const std::span<const int32_t> below = forest.BranchesBelow(n);
    if (below.empty()) continue;
    int32_t begin = forest.begin[n];
    if (problem_.spec.window > 0) {
      int32_t first_seen = INT32_MAX;
      for (const int32_t b : below)
        first_seen = std::min(first_seen, lengths[b] - forest.query_count[b] - problem_.spec.window + 1);
      begin = std::max(begin, first_seen);
    }
    tokens += std::max(0, (forest.IsLive(n) ? lengths[below.front()] : forest.end[n]) - begin);
  }
  return tokens;
}

// Of all queries.
int64_t Planner::VisibleTokens() const {
  const std::span<const int32_t> lengths = forest_.view().branch_kv_len;
  if (problem_.spec.window == 0 && !forest_.now().has_tree_mask())
    return Dot(forest_.now().query_count, lengths) - tiles_.tokens_before();
  const std::span<const int32_t> query_begin = forest_.now().query_begin();  // the caller's may be those of the next step
  int64_t visible = 0;
  for (int32_t b : forest_.now().ActiveBranches()) {
    const int32_t count = forest_.now().query_count[b], length = lengths[b];
    for (int32_t q = 0; q < count; ++q) {
      int64_t seen = length - count + q + 1;
      if (forest_.now().has_tree_mask()) {
        const uint64_t in_batch = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
        seen = length - count + std::popcount(forest_.view().query_tree_mask[query_begin[b] + q] & in_batch);
      }
      visible += problem_.spec.window > 0 ? std::min<int64_t>(seen, problem_.spec.window) : seen;
    }
  }
  return visible;
}

PlanStats Planner::Stats() const {
  PlanStats stats;
  stats.nodes_replanned = shares_.nodes_decided();
  stats.merge_sets_replanned = items_.sets_laid_out();
  stats.updates_skipped = updates_skipped_;
  stats.updates_replanned = updates_replanned_;
  if (!planned_) return stats;
  stats.num_items = items_.num_items();
  stats.num_merge_sets = tiles_.sets_in_use();
  stats.num_contributions = items_.set_contributions();
  stats.state_bytes = 2 * problem_.cost.state_bytes_per_row() * items_.merged_state_rows();
  stats.kv_tokens_read = TokensRead();
  stats.kv_tokens_read_unshared = TokensReadUnshared();
  stats.shared_nodes = shares_.shared_nodes();
  stats.unshared_nodes = shares_.unshared_nodes();
  stats.kv_bytes_read = stats.kv_tokens_read * problem_.cost.kv_bytes_per_token();
  stats.kv_bytes_read_unshared = stats.kv_tokens_read_unshared * problem_.cost.kv_bytes_per_token();
  stats.kv_bytes_distinct = TokensDistinct() * problem_.cost.kv_bytes_per_token();
  stats.flops = VisibleTokens() * problem_.cost.flops_per_row_token() * problem_.spec.group_size();
  stats.predicted_ns = problem_.cost.has_latencies() ? shares_.step_ns() : items_.TotalLoad().RooflineNs();
  return stats;
}

}  // namespace coppice::attention
