// Lengths that are held. Layer: attention.
#include "attention/plan_lengths.h"

#include <algorithm>
#include <climits>

namespace coppice::attention {

void PlanLengths::Layout(Arena& arena) {
  const int32_t num_branches = problem_.capacity.max_branches;
  for (std::span<int32_t>* lengths : {&hold_min_, &hold_max_, &min_len_, &max_len_}) *lengths = arena.Take<int32_t>(num_branches);
  grows_ = arena.Take<uint8_t>(num_branches);
}

void PlanLengths::Clear() {
  std::ranges::fill(hold_min_, INT32_MIN);
  std::ranges::fill(hold_max_, INT32_MAX);
}

void PlanLengths::Retire(int32_t branch) {
  grows_[branch] = 0;
  hold_min_[branch] = INT32_MIN;
  hold_max_[branch] = INT32_MAX;
}

std::optional<int32_t> PlanLengths::StepsLeft(const PrefixForestView& forest, const ForestHistory& history) const {
  const ForestIndex& index = history.now();
  if (forest.version != history.view().version || forest.page_size != history.view().page_size ||
      forest.query_tree_mask.empty() == index.has_tree_mask() ||
      forest.node_parent.size() != static_cast<size_t>(index.num_nodes()) ||
      forest.branch_node.size() != static_cast<size_t>(index.num_branches()) ||
      forest.branch_kv_len.size() != forest.branch_node.size() || forest.branch_query_count.size() != forest.branch_node.size()) {
    return std::nullopt;
  }
  const int32_t *lengths = forest.branch_kv_len.data(), *counts = forest.branch_query_count.data(),
                *nodes = forest.branch_node.data();
  const int32_t *planned_counts = index.query_count.data(), *planned_nodes = index.branch_node.data();
  const int32_t *least = min_len_.data(), *most = max_len_.data();
  uint32_t outside = 0, steps = INT32_MAX;
  const auto look_at = [&](size_t b) {
    const uint32_t length = static_cast<uint32_t>(lengths[b]);
    const uint32_t shortest = static_cast<uint32_t>(least[b]), longest = static_cast<uint32_t>(most[b]);
    outside |= length - shortest > longest - shortest;
    outside |= static_cast<uint32_t>(counts[b] ^ planned_counts[b]) | static_cast<uint32_t>(nodes[b] ^ planned_nodes[b]);
    steps = std::min(steps, longest - length);  // wraps to a large number where any length will do
  };
  constexpr size_t kBlock = 16;  // a count that compilers vectorise
  const size_t num_branches = forest.branch_kv_len.size();
  size_t b = 0;
  for (; b + kBlock <= num_branches; b += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) look_at(b + i);
  }
  for (; b < num_branches; ++b) look_at(b);
  if (outside != 0) return std::nullopt;
  return static_cast<int32_t>(steps);
}

// Finds the lengths of a branch that would change nothing but the live end of its last item.
void PlanLengths::HoldBranch(int32_t b, const ForestIndex& forest, const SharePlan& shares, const ItemLowering& items) {
  const int32_t n = forest.branch_node[b], length = forest.kv_len[b], count = forest.query_count[b];
  const int32_t leaf_begin = forest.begin[n];
  grows_[b] = shares.Grows(b);
  hold_min_[b] = hold_max_[b] = length;
  const bool queries_in_shared_node = length - count < leaf_begin;
  const RangeCuts& cuts = items.cuts(problem_.TileRange(b));
  const bool cut_ahead = problem_.spec.deterministic && cuts.contributions_above > 0;  // for the present length
  if (!grows_[b] || problem_.spec.window > 0 || queries_in_shared_node || cuts.pieces > 1 || cut_ahead) return;
  const LengthClass planned = problem_.PlannedClass(leaf_begin, length);
  hold_min_[b] = std::max(planned.first, leaf_begin + count);
  hold_max_[b] = planned.last;
}

// Unsplit rows of a branch that ends at kLive may grow; all else is laid out for one length.
int32_t PlanLengths::Hold(const ForestHistory& history, const PlanChanges& changes, const SharePlan& shares,
                          const ItemLowering& items) {
  const ForestIndex& forest = history.now();
  changes.ForEach([&](int32_t n) {
    for (int32_t b : forest.BranchesAt(n)) HoldBranch(b, forest, shares, items);
  });
  const int32_t page_size = history.view().page_size, most_pages = INT32_MAX / page_size;
  const int32_t lookahead = problem_.options.lookahead_tokens;
  const int32_t *lengths = forest.kv_len.data(), *counts = forest.query_count.data();
  const int32_t* pages = history.view().branch_page_capacity.data();
  const uint8_t* grows = grows_.data();
  int32_t *least = min_len_.data(), *most = max_len_.data();
  int32_t steps = INT32_MAX;
  for (int32_t b = 0; b < forest.num_branches(); ++b) {
    if (counts[b] == 0) {
      least[b] = INT32_MIN, most[b] = INT32_MAX;
      continue;
    }
    int32_t ahead = 0;
    if (grows[b] != 0) ahead = std::min(lookahead, std::min(pages[b], most_pages) * page_size - lengths[b]);
    least[b] = lengths[b];
    most[b] = lengths[b] + ahead;
    steps = std::min(steps, ahead);
  }
  return steps;
}

}  // namespace coppice::attention
