// What a plan says of itself in numbers. A decode step asks after each Update, so nothing here walks the plan but what depends on
// lengths in other ways than by their sum: windows, draft masks, and items laid out ahead of a branch's length. Layer: attention.
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

// A row tile sees its branch but for the queries after it, as does a query. `sign`: 1 when a branch comes, -1 when it leaves.
void Planner::CountBranch(int32_t branch, int32_t query_count, int32_t sign) {
  row_tiles_[branch] = sign > 0 ? NumTiles(branch) : 0;
  sets_in_use_ += sign * branch_sets_[branch];
  split_branches_ += NumTiles(branch) > 1 ? sign : 0;
  const int64_t queries = query_count, tiles = NumTiles(branch), per_tile = int64_t{tile_sets_} * set_queries_;
  tokens_before_ += sign * queries * (queries - 1) / 2;
  if (tiles > 1) tile_tokens_before_ += sign * ((tiles - 1) * queries - per_tile * tiles * (tiles - 1) / 2);
}

void Planner::CountContributions(const MergeSet& set, int32_t sign) {
  set_contributions_ += sign * set.contribution_count;
  if (set.contribution_count > 1) {
    merged_state_rows_ += int64_t{sign} * set.query_count * spec_.group_size() * set.contribution_count;
  }
}

void Planner::BeginReads() {
  std::ranges::fill(open_reads_, 0);
  closed_reads_ = 0;
  reads_ahead_ = false;
}

int64_t Planner::TokensRead() const {
  const std::span<const int32_t> lengths = forest_.branch_kv_len;
  if (spec_.window == 0 && !reads_ahead_) return closed_reads_ + Dot(open_reads_, lengths);
  int64_t tokens = 0;
  const auto count_item = [&](int32_t id) {
    const WorkItem& item = items_[id];
    int32_t first_seen = 0;
    if (spec_.window > 0) {
      first_seen = INT32_MAX;
      for (int32_t set : members_.subspan(item.member_begin, item.member_count)) {
        const MergeSet& s = sets_[set];
        const int32_t first_query = lengths[s.branch] - index_->query_count[s.branch] + s.query_begin;
        first_seen = std::min(first_seen, std::max(0, first_query - spec_.window + 1));
      }
    }
    // A range laid out ahead of a branch's length is read up to the length; a shared one is within every member's.
    const int32_t end = std::min(item.kv_end, lengths[item.page_row]);
    tokens += std::max(0, end - std::max(item.kv_begin, first_seen));
  };
  std::ranges::for_each(compute_queue_.first(num_compute_), count_item);
  std::ranges::for_each(bandwidth_queue_.first(num_bandwidth_), count_item);
  return tokens;
}

int64_t Planner::TokensReadUnshared() const {
  const std::span<const int32_t> lengths = forest_.branch_kv_len;
  if (spec_.window == 0) return Dot(row_tiles_, lengths) - tile_tokens_before_;
  int64_t tokens = 0;
  for (int32_t b : index_->ActiveBranches()) {
    ForEachTile(b, [&](const Tile& tile) {
      const int32_t first_query = lengths[b] - index_->query_count[b] + tile.first_query;
      tokens += tile.num_queries + std::min(first_query, spec_.window - 1);
    });
  }
  return tokens;
}

// Of all queries.
int64_t Planner::VisibleTokens() const {
  const std::span<const int32_t> lengths = forest_.branch_kv_len;
  if (spec_.window == 0 && !index_->has_tree_mask()) return Dot(index_->query_count, lengths) - tokens_before_;
  int64_t visible = 0;
  for (int32_t b : index_->ActiveBranches()) {
    const int32_t count = index_->query_count[b], length = lengths[b];
    for (int32_t q = 0; q < count; ++q) {
      int64_t seen = length - count + q + 1;
      if (index_->has_tree_mask()) {
        const uint64_t in_batch = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
        seen = length - count + std::popcount(forest_.query_tree_mask[forest_.branch_query_begin[b] + q] & in_batch);
      }
      visible += spec_.window > 0 ? std::min<int64_t>(seen, spec_.window) : seen;
    }
  }
  return visible;
}

PlanStats Planner::Stats() const {
  PlanStats stats;
  stats.nodes_replanned = nodes_replanned_;
  stats.merge_sets_replanned = sets_replanned_;
  stats.updates_skipped = updates_skipped_;
  stats.updates_replanned = updates_replanned_;
  if (!planned_) return stats;
  stats.num_items = num_compute_ + num_bandwidth_;
  stats.num_merge_sets = sets_in_use_;
  stats.num_contributions = set_contributions_;
  stats.state_bytes = 2 * cost_.state_bytes_per_row() * merged_state_rows_;
  stats.kv_tokens_read = TokensRead();
  stats.kv_tokens_read_unshared = TokensReadUnshared();
  stats.shared_nodes = shared_nodes_;
  stats.absorbed_nodes = absorbed_nodes_;
  stats.kv_bytes_read = stats.kv_tokens_read * cost_.kv_bytes_per_token();
  stats.kv_bytes_read_unshared = stats.kv_tokens_read_unshared * cost_.kv_bytes_per_token();
  stats.flops = VisibleTokens() * cost_.flops_per_row_token() * spec_.group_size();
  stats.predicted_ns = cost_.has_latencies() ? step_ns_ : TotalLoad().RooflineNs();
  return stats;
}

}  // namespace coppice::attention
