// Share or read per child, node by node: prices of the two resources, the two costs; then the whole step. docs/attention.md, "What
// is decided". Layer: attention.
#include "attention/share/share_plan.h"

#include <algorithm>
#include <cmath>

namespace coppice::attention {

std::string_view Name(Decision decision) {
  switch (decision) {
    case Decision::kIdle: return "idle";
    case Decision::kNothing: return "nothing to decide";
    case Decision::kOnlyConsumer: return "read on by the only consumer";
    case Decision::kPolicy: return "not shared by policy";
    case Decision::kReadPerChild: return "read per child";
    case Decision::kShared: return "shared";
    case Decision::kForced: return "shared by force";
    case Decision::kCapacity: return "read per child for lack of capacity";
    case Decision::kNoGain: return "read per child since the step gains nothing";
  }
  return "?";
}

// By memory and compute time of the step if everything were shared (PricesOf).
//
// Where the machine's latencies are known, reads of tokens that others read too have the price that they have for a step that
// shares nothing, and dense tiles that of their time: there they and streaming follow each other.
void SharePlan::SetPrices() {
  if (problem_.cost.has_latencies()) {
    const double reread_price = std::ceil(8 * RereadPrice(problem_.cost, comparison_.unshared_shape())) / 8;
    if (reread_price != memory_price_) changes_->MarkAll();
    memory_price_ = reread_price;
    return;
  }
  const auto [memory_price, compute_price] = PricesOf(problem_.cost, step_tokens_, step_compute_ps_);
  if (memory_price != memory_price_ || compute_price != compute_price_) changes_->MarkAll();
  memory_price_ = memory_price;
  compute_price_ = compute_price;
}

void SharePlan::Decide(int32_t coarsening_level) {
  coarsening_level_ = coarsening_level;
  changes_->ForEachUpwards([&](int32_t n) {
    DecideNode(n);
    ++nodes_decided_;
  });
  CompareSteps();
  AssignRanges();
}

// Share: read the tokens once, multiply all rows at once, and give every merge set below one more partial state. Read per child:
// each item below reads the tokens too, later readers from the cache. The first read is the same in both.
void SharePlan::DecideNode(int32_t n) {
  NodePlan& node = nodes_[n];
  node.below_reads = 0;
  node.below_compute = 0;
  node.share_ns = node.per_child_ns = 0;
  node.own_reads = 0;
  node.own_compute = 0;
  if (node.rows == 0) {
    node.wanted = Decision::kIdle;
    return;
  }
  for (int32_t b : forest_->BranchesAt(n)) {
    tiles_.ForEachTile(b, [&](const RowTile& tile) {
      node.below_reads += 1;
      node.below_compute += costs_.Of(tile.num_queries * problem_.spec.group_size()).compute_ns;
    });
  }
  for (int32_t c = forest_->first_child[n]; c >= 0; c = forest_->next_sibling[c]) {
    node.below_reads += nodes_[c].reads();
    node.below_compute += nodes_[c].compute();
  }
  node.own_reads = costs_.Of(node.rows).row_groups;
  node.own_compute = costs_.Of(node.rows).compute_ns;

  if (node.tokens == 0 || node.num_consumers == 1) {
    node.wanted = node.tokens == 0 ? Decision::kNothing : Decision::kOnlyConsumer;
    return;
  }
  const double tokens = node.tokens, reread = problem_.cost.RereadNs(node.tokens);
  const auto reads_ns = [&](int32_t reads) { return tokens * memory_price_ * (reads - 1) * reread; };
  node.per_child_ns = reads_ns(node.below_reads) + tokens * compute_price_ * node.below_compute;
  // A set's first merge also costs the state of its own item and the fold. Ancestors, shared by at least as many, have their part
  // of that: this node's part is its share of the path so far.
  const double first_merge = node.num_sets * problem_.cost.rates().merge_ns + problem_.cost.StateNs(node.rows);
  node.share_ns =
      reads_ns(node.own_reads) +
      static_cast<double>(problem_.cost.tiles().ComputedTokens(node.rows, node.tokens)) * compute_price_ * node.own_compute +
      problem_.cost.StartNs(node.rows) + problem_.cost.StateNs(node.rows) + first_merge * tokens / std::max(1, node.share_end);
  node.wanted = Choose(n);
}

Decision SharePlan::Choose(int32_t n) const {
  const NodePlan& node = nodes_[n];
  if (problem_.options.policy == SharePolicy::kStore) return Decision::kPolicy;
  if (problem_.options.policy == SharePolicy::kOneLevel && forest_->BranchesBelow(n).size() != forest_->ActiveBranches().size()) {
    return Decision::kPolicy;
  }
  if (problem_.options.force_sharing && coarsening_level_ <= kLengthensTasksOnly) return Decision::kForced;
  if (node.share_ns >= node.per_child_ns) return problem_.options.force_sharing ? Decision::kCapacity : Decision::kReadPerChild;
  const int32_t gain = 1 << std::max(0, coarsening_level_ - kLengthensTasksOnly);
  if (coarsening_level_ == kMaxCoarseningLevel || node.share_ns * gain >= node.per_child_ns) return Decision::kCapacity;
  return Decision::kShared;
}

// From the roots down: the items of the step as the nodes want them.
void SharePlan::ListItems() {
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
    comparison_.SetWanted(NodeRange(n), shared);
    if (begin != node.items_begin || above != node.items_above) changes_->MarkChildren(n);
    node.items_begin = begin;
    node.items_above = above;
    for (int32_t b : forest_->BranchesAt(n)) {
      tiles_.ForEachTile(b, [&](const RowTile& tile) {
        StepItem item = comparison_.unshared(tile.range_id);
        item.begin = std::max(item.begin, begin);
        item.items += above;
        comparison_.SetWanted(tile.range_id, item);
      });
    }
  });
}

// The decisions above weigh sums of work, one node at a time. The whole step also has to end sooner than if nothing were shared: a
// GPU's short one may wait longer for a merge than it saves in reading, and prices are no times.
void SharePlan::CompareSteps() {
  bool saves_time = true;
  if (problem_.ComparesSteps()) {
    ListItems();
    saves_time = comparison_.SavesTime(*forest_, nodes_);
  }
  if (saves_time != sharing_saves_time_) changes_->MarkAll();
  sharing_saves_time_ = saves_time;
  changes_->ForEach([&](int32_t n) {
    NodePlan& node = nodes_[n];
    CountDecision(node, -1);
    node.decision = !saves_time && node.wanted == Decision::kShared ? Decision::kNoGain : node.wanted;
    CountDecision(node, 1);
  });
}

void SharePlan::CountDecision(const NodePlan& node, int32_t sign) {
  shared_nodes_ += node.shared() ? sign : 0;
  unshared_nodes_ += node.is_read_per_child() ? sign : 0;
}

}  // namespace coppice::attention
