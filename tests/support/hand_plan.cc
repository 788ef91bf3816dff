#include "tests/support/hand_plan.h"

#include <algorithm>
#include <map>

namespace coppice::attention::testing {

HandPlan::HandPlan(const AttentionSpec& spec, const PrefixForestView& forest, const HandPlanOptions& options, uint64_t seed)
    : spec_(spec), options_(options), page_size_(forest.page_size) {
  std::mt19937_64 rng(seed);
  const auto chance = [&](double p) { return std::bernoulli_distribution(p)(rng); };
  const int32_t set_queries = std::max(1, 64 / spec.group_size());
  std::map<int32_t, std::vector<int32_t>> branches_below;  // node -> branches with queries
  std::vector<std::vector<int32_t>> sets_of_branch(forest.branch_node.size());
  for (int32_t b = 0; b < std::ssize(forest.branch_node); ++b) {
    if (forest.branch_node[b] == kFreeSlot || forest.branch_query_count[b] == 0) continue;
    for (int32_t n = forest.branch_node[b]; n != kNoParent; n = forest.node_parent[n]) branches_below[n].push_back(b);
    for (int32_t q = 0; q < forest.branch_query_count[b]; q += set_queries) {
      sets_of_branch[b].push_back(static_cast<int32_t>(sets_.size()));
      sets_.push_back({.branch = b, .query_begin = q, .query_count = std::min(set_queries, forest.branch_query_count[b] - q)});
    }
  }
  of_set_.resize(sets_.size());
  std::map<int32_t, bool> shared;
  for (const auto& [node, branches] : branches_below) {
    shared[node] = options.share && branches.size() > 1 && !chance(options.read_per_child);
  }

  const auto add_range = [&](int32_t page_row, Range range, const std::vector<int32_t>& sets) {
    if (options.cut_multiple > 0) {
      const int32_t last = range.end == kLive ? forest.branch_kv_len[page_row] + options.lookahead : range.end;
      for (int32_t cut = (range.begin / options.cut_multiple + 1) * options.cut_multiple; cut < last; cut += options.cut_multiple) {
        if (!chance(options.cut)) continue;
        AddItem(page_row, {range.begin, cut}, sets);
        range.begin = cut;
      }
    }
    AddItem(page_row, range, sets);
  };
  for (const auto& [node, branches] : branches_below) {
    if (!shared[node]) continue;
    std::vector<int32_t> sets;
    for (const int32_t b : branches) sets.insert(sets.end(), sets_of_branch[b].begin(), sets_of_branch[b].end());
    std::shuffle(sets.begin(), sets.end(), rng);
    add_range(branches[rng() % branches.size()], {forest.node_begin[node], forest.node_end[node]}, sets);
  }
  for (int32_t b = 0; b < std::ssize(sets_of_branch); ++b) {  // what is left of each path, runs of nodes joined
    if (sets_of_branch[b].empty()) continue;
    int32_t end = kLive, begin = 0;
    for (int32_t n = forest.branch_node[b]; n != kNoParent; n = forest.node_parent[n]) {
      begin = forest.node_begin[n];
      if (!shared[n]) continue;
      if (end > forest.node_end[n]) add_range(b, {forest.node_end[n], end}, sets_of_branch[b]);
      end = begin;
    }
    if (end > begin) add_range(b, {begin, end}, sets_of_branch[b]);
  }

  for (size_t s = 0; s < sets_.size(); ++s) {
    std::ranges::stable_sort(of_set_[s], {}, [&](const Contribution& c) { return items_[c.item].kv_begin; });
    sets_[s].contribution_begin = static_cast<int32_t>(contributions_.size());
    sets_[s].contribution_count = static_cast<int32_t>(of_set_[s].size());
    for (Contribution c : of_set_[s]) {
      if (of_set_[s].size() > 1) {
        const int32_t rows = sets_[s].query_count * spec.group_size();
        c.state_begin = num_states_;
        c.head_stride = rows;
        num_states_ += rows * spec.num_kv_heads;
        if (items_[c.item].state_begin < 0) items_[c.item].state_begin = c.state_begin;
      }
      contributions_.push_back(c);
    }
  }
  std::shuffle(compute_queue_.begin(), compute_queue_.end(), rng);
  std::shuffle(bandwidth_queue_.begin(), bandwidth_queue_.end(), rng);
}

void HandPlan::AddItem(int32_t page_row, Range range, const std::vector<int32_t>& sets) {
  const int32_t id = static_cast<int32_t>(items_.size());
  int32_t rows = 0;
  for (const int32_t s : sets) {
    rows += sets_[s].query_count * spec_.group_size();
    of_set_[s].push_back({.state_begin = -1, .head_stride = 0, .item = id});
  }
  const bool dense = rows >= options_.dense_min_rows && !options_.stream_only;
  items_.push_back({.kind = dense ? ItemKind::kDenseTile : ItemKind::kStreamTile,
                    .flags = kItemMasked,
                    .heads_per_task = static_cast<uint16_t>(1 + id % spec_.num_kv_heads),
                    .page_row = page_row,
                    .kv_begin = range.begin,
                    .kv_end = range.end,
                    .member_begin = static_cast<int32_t>(members_.size()),
                    .member_count = static_cast<int32_t>(sets.size()),
                    .state_begin = -1,
                    .predicted_ns = 0});
  members_.insert(members_.end(), sets.begin(), sets.end());
  (dense ? compute_queue_ : bandwidth_queue_).push_back(id);
}

PlanView HandPlan::View() const {
  return {.spec = spec_,
          .page_size = page_size_,
          .items = items_,
          .members = members_,
          .merge_sets = sets_,
          .contributions = contributions_,
          .compute_queue = compute_queue_,
          .bandwidth_queue = bandwidth_queue_,
          .num_states = num_states_};
}

PlanSizes HandPlan::Sizes() const {
  return {.max_items = static_cast<int32_t>(items_.size()),
          .max_members = static_cast<int32_t>(members_.size()),
          .max_merge_sets = static_cast<int32_t>(sets_.size()),
          .max_contributions = static_cast<int32_t>(contributions_.size()),
          .max_states = num_states_};
}

int32_t HandPlan::max_contributions_of_a_set() const { return MostContributions(View()); }

void PlanCoverage::Add(const PlanView& plan, const PrefixForestView& forest) {
  for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
    for (const int32_t id : queue) {
      const WorkItem& item = plan.items[id];
      bool at_node = item.kv_begin == 0;
      for (int32_t n = forest.branch_node[item.page_row]; n != kNoParent; n = forest.node_parent[n]) {
        at_node |= forest.node_begin[n] == item.kv_begin;
      }
      cuts += !at_node;
      ++((item.flags & kItemMasked) != 0 ? masked : unmasked);
    }
  }
  merges_of_three += std::ranges::count_if(plan.merge_sets, [](const MergeSet& set) { return set.contribution_count >= 3; });
}

int32_t MostContributions(const PlanView& plan) {
  int32_t most = 1;
  for (const MergeSet& set : plan.merge_sets) most = std::max(most, set.contribution_count);
  return most;
}

}  // namespace coppice::attention::testing
