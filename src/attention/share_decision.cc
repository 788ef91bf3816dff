// Share or absorb, node by node: sums of the tree, prices of the two resources, the two costs. docs/attention.md, "What is
// decided". Layer: attention.
#include "attention/plan.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>

#include "attention/plan_stages.h"

namespace coppice::attention {

// Rows, sets, consumers and query positions of changed subtrees; ancestors of a change are changed.
void Planner::SumUpwards() {
  ForEachDirtyUpwards([&](int32_t n) {
    SumNode(n);
    const int32_t p = index_->parent[n];
    if (p == kNoParent) return;
    dirty_.Mark(index_->position[p]);
    members_changed_[p] |= members_changed_[n];
  });
}

void Planner::SumNode(int32_t n) {
  NodePlan& node = nodes_[n];
  node.rows = node.num_sets = node.num_consumers = 0;
  node.min_query = INT32_MAX;
  node.max_query = -1;
  const int32_t begin = AlignShare(index_->begin[n]);
  node.share_end = IsLive(n) ? begin : AlignShare(index_->end[n]);
  for (int32_t b : BranchesAt(n)) {
    const int32_t count = index_->query_count[b], tiles = NumTiles(b), first_query = index_->kv_len[b] - count;
    node.rows += count * spec_.group_size();
    node.num_sets += branch_sets_[b];
    node.num_consumers += tiles;
    node.min_query = std::min(node.min_query, first_query);
    node.max_query = std::max(node.max_query, index_->kv_len[b] - 1);
    // The row tiles of a prompt chunk share what lies before the chunk.
    if (IsLive(n) && tiles > 1) node.share_end = std::max(begin, AlignDown(first_query, std::max(share_unit_, traits_.kv_tile)));
    if (!JudgesSteps()) continue;
    const bool grows = Grows(b);
    ForEachTile(b, [&](const Tile& tile) {
      const int32_t min_query = first_query + tile.first_query, end = min_query + tile.num_queries;
      SetItem(unshared_, tile.owner,
              {.rows = tile.num_queries * spec_.group_size(),
               .begin = VisibleBegin(min_query),
               .end = grows ? PlannedClass(index_->begin[n], end).typical : end,
               .num_sets = tile.num_sets,
               .items = 1});
    });
  }
  for (int32_t c = index_->first_child[n]; c >= 0; c = index_->next_sibling[c]) {
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
    const int32_t node_begin = index_->begin[n], first_read = std::max(node_begin, VisibleBegin(node.min_query));
    int32_t end = index_->end[n], typical_end = end;
    if (IsLive(n)) {
      const LengthClass lengths = PlannedClass(node_begin, node.max_query + 1);
      end = lengths.planned, typical_end = lengths.typical;
    }
    node.step_tokens = std::max(0, end - first_read);
    node.step_compute_ps = node.step_tokens * CostsOf(node.rows).compute_ps;
    read_tokens = std::max(0, typical_end - first_read);
  }
  step_tokens_ += node.step_tokens;
  step_compute_ps_ += node.step_compute_ps;
  if (JudgesSteps()) SetReadTokens(node, read_tokens);
}

// Memory and compute time of the step if everything were shared. The resource that binds has price 1; what the other one has to
// spare makes it cheaper, down to a quarter (not to nothing: many nodes could each spend the same slack). Steps of two keep
// prices, and with them the decisions of unchanged nodes, stable.
//
// Where the machine's latencies are known, reads of tokens that others read too have the price that they have for a step that
// shares nothing, and dense tiles that of their time: there they and streaming follow each other.
void Planner::SetPrices() {
  if (cost_.has_latencies()) {
    const double reread_price = std::ceil(8 * cost_.RereadPrice(unshared_.shape)) / 8;
    if (reread_price != memory_price_) MarkAll();
    memory_price_ = reread_price;
    return;
  }
  const double memory = static_cast<double>(step_tokens_) * cost_.ReadNs(), compute = static_cast<double>(step_compute_ps_) * 1e-3;
  const auto price = [](double mine, double other) { return mine >= other ? 1.0 : mine * 2 >= other ? 0.5 : 0.25; };
  const double memory_price = price(memory, compute), compute_price = price(compute, memory);
  if (memory_price != memory_price_ || compute_price != compute_price_) MarkAll();
  memory_price_ = memory_price;
  compute_price_ = compute_price;
}

// Tokens that the decision at a node is about: its own, and those of ancestors that only this node would read on through.
void Planner::FindChains() {
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = index_->parent[n];
    const bool only = p != kNoParent && nodes_[p].num_consumers == 1;
    node.chain_begin = only ? nodes_[p].chain_begin : AlignShare(index_->begin[n]);
    node.tokens = std::max(0, node.share_end - std::max(node.chain_begin, VisibleBegin(node.min_query)));
    const int32_t chain_below = node.num_consumers == 1 ? node.chain_begin : kLive;
    if (chain_below != std::exchange(node.chain_below, chain_below)) MarkChildren(n);
  });
}

void Planner::Decide() {
  ForEachDirtyUpwards([&](int32_t n) {
    DecideNode(n);
    ++nodes_replanned_;
  });
}

// Share: read the tokens once, multiply all rows at once, and give every merge set below one more partial state. Absorb: each
// item below reads the tokens too, later readers from the cache. The first read is the same in both.
void Planner::DecideNode(int32_t n) {
  NodePlan& node = nodes_[n];
  node.below_reads = 0;
  node.below_compute = 0;
  node.share_ns = node.absorb_ns = 0;
  node.own_reads = 0;
  node.own_compute = 0;
  if (node.rows == 0) {
    node.wanted = Decision::kIdle;
    return;
  }
  for (int32_t b : BranchesAt(n)) {
    ForEachTile(b, [&](const Tile& tile) {
      node.below_reads += 1;
      node.below_compute += CostsOf(tile.num_queries * spec_.group_size()).compute_ns;
    });
  }
  for (int32_t c = index_->first_child[n]; c >= 0; c = index_->next_sibling[c]) {
    node.below_reads += nodes_[c].reads();
    node.below_compute += nodes_[c].compute();
  }
  node.own_reads = CostsOf(node.rows).row_groups;
  node.own_compute = CostsOf(node.rows).compute_ns;

  if (node.tokens == 0 || node.num_consumers == 1) {
    node.wanted = node.tokens == 0 ? Decision::kNothing : Decision::kOnlyConsumer;
    return;
  }
  const double tokens = node.tokens, reread = cost_.RereadNs(node.tokens);
  const auto reads_ns = [&](int32_t reads) { return tokens * memory_price_ * (reads - 1) * reread; };
  node.absorb_ns = reads_ns(node.below_reads) + tokens * compute_price_ * node.below_compute;
  // A set's first merge also costs the state of its own item and the fold. Ancestors, shared by at least as many, pay their part
  // of that: this node's part is its share of the path so far.
  const double first_merge = node.num_sets * cost_.MergeNs() + cost_.StateNs(node.rows);
  node.share_ns = reads_ns(node.own_reads) +
                  static_cast<double>(cost_.ComputedTokens(node.rows, node.tokens)) * compute_price_ * node.own_compute +
                  cost_.StartNs(node.rows) + cost_.StateNs(node.rows) + first_merge * tokens / std::max(1, node.share_end);
  node.wanted = Choose(n);
}

Decision Planner::Choose(int32_t n) const {
  const NodePlan& node = nodes_[n];
  if (options_.policy == SharePolicy::kStore) return Decision::kPolicy;
  if (options_.policy == SharePolicy::kOneLevel && BranchesBelow(n).size() != index_->ActiveBranches().size()) {
    return Decision::kPolicy;
  }
  if (options_.force_sharing && pressure_ <= kOnlyCoarser) return Decision::kForced;
  if (node.share_ns >= node.absorb_ns) return options_.force_sharing ? Decision::kCapacity : Decision::kAbsorbed;
  const int32_t gain = 1 << std::max(0, pressure_ - kOnlyCoarser);
  if (pressure_ == kMaxPressure || node.share_ns * gain >= node.absorb_ns) return Decision::kCapacity;
  return Decision::kShared;
}

}  // namespace coppice::attention
