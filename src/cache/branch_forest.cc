#include "cache/branch_forest.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/check.h"

namespace coppice {

using attention::kFreeSlot;
using attention::kLive;
using attention::kNoParent;

BranchForest::ChangeList::ChangeList(size_t num_ids) : noted_in_(num_ids) {
  for (std::vector<int32_t>* ids : {&ids_, &next_ids_}) ids->reserve(2 * num_ids);
}

void BranchForest::ChangeList::Note(int32_t id) {
  if (std::exchange(noted_in_[id], period_) != period_) ids_.push_back(id);
}

void BranchForest::ChangeList::EndPeriod() {
  next_ids_.assign(ids_.begin() + static_cast<std::ptrdiff_t>(before_), ids_.end());
  before_ = next_ids_.size();
  std::swap(ids_, next_ids_);
  ++period_;
}

void BranchForest::ChangeList::Clear() {
  before_ = ids_.size();
  EndPeriod();
}

Result<BranchForest> BranchForest::Create(const PrefixTree* tree, const Capacity& capacity) {
  const size_t entries = static_cast<size_t>(capacity.max_branches) * capacity.pages_per_branch;
  COPPICE_ASSIGN_OR_RETURN(Buffer rows, Buffer::Allocate(entries * sizeof(PageId)));
  return BranchForest(tree, capacity, std::move(rows));
}

BranchForest::BranchForest(const PrefixTree* tree, const Capacity& capacity, Buffer rows)
    : tree_(tree),
      max_branches_(capacity.max_branches),
      pages_per_branch_(capacity.pages_per_branch),
      page_size_(capacity.page_size),
      changed_rows_(max_branches_),
      changed_nodes_(2 * static_cast<size_t>(max_branches_)),
      node_parent_(2 * max_branches_, kFreeSlot),
      node_begin_(2 * max_branches_),
      node_end_(2 * max_branches_),
      branch_node_(max_branches_, kFreeSlot),
      branch_query_begin_(max_branches_),
      branch_query_count_(max_branches_),
      branch_kv_len_(max_branches_),
      branch_page_begin_(max_branches_),
      branch_page_capacity_(max_branches_, pages_per_branch_),
      attach_(max_branches_, kNoNode),
      queried_step_(max_branches_),
      rows_(std::move(rows)) {
  free_junctions_.reserve(max_branches_);
  for (int32_t b = 0; b < max_branches_; ++b) branch_page_begin_[b] = b * pages_per_branch_;
  Clear();
}

void BranchForest::Clear() {
  changed_since_ = end_version_ = ++version_;  // a version whose later changes have no reader yet
  changed_rows_.Clear();
  changed_nodes_.Clear();
  for (std::vector<int32_t>* per_slot : {&node_parent_, &branch_node_}) std::ranges::fill(*per_slot, kFreeSlot);
  std::ranges::fill(branch_query_count_, 0);
  std::ranges::fill(attach_, kNoNode);
  links_.clear();
  free_junctions_.clear();
  for (int32_t slot = 2 * max_branches_ - 1; slot >= max_branches_; --slot) free_junctions_.push_back(slot);
}

BranchForest::TreeLinks& BranchForest::LinksOf(NodeId node) {
  if (static_cast<size_t>(node) >= links_.size()) links_.resize(tree_->node_capacity());
  return links_[node];
}

int32_t BranchForest::TopForestNode(int64_t element) const {
  while (element >= max_branches_) {
    const TreeLinks& links = links_[element - max_branches_];
    if (links.count > 1) return links.junction;
    element = links.element_sum;
  }
  return static_cast<int32_t>(element);
}

void BranchForest::Link(BranchId branch, NodeId attach, int32_t kv_len) {
  COPPICE_DCHECK(attach_[branch] == kNoNode);
  NoteRowChange(branch);
  attach_[branch] = attach;
  // Up to the first tree node that already leads to a branch: there the new one parts from it.
  NodeId meet = attach;
  for (int64_t element = branch; meet != kRootNode; meet = tree_->node(meet).parent) {
    TreeLinks& links = LinksOf(meet);
    links.element_sum += element;
    if (links.count++ > 0) {
      if (links.count == 2) {  // the chain of the one that was alone so far is cut at the end of `meet`
        const int32_t remaining_child = TopForestNode(links.element_sum - element);
        const int32_t junction = free_junctions_.back();
        free_junctions_.pop_back();
        links.junction = junction;
        node_parent_[junction] = node_parent_[remaining_child];
        node_begin_[junction] = node_begin_[remaining_child];
        node_end_[junction] = tree_->node(meet).end();
        node_parent_[remaining_child] = junction;
        node_begin_[remaining_child] = node_end_[junction];
        changed_nodes_.Note(junction);
        changed_nodes_.Note(remaining_child);
      }
      break;
    }
    element = ElementOf(meet);
  }
  const int32_t parent = meet == kRootNode ? kNoParent : links_[meet].junction;
  branch_node_[branch] = branch;
  branch_query_count_[branch] = 0;
  branch_kv_len_[branch] = kv_len;
  node_parent_[branch] = parent;
  node_begin_[branch] = EndOf(parent);
  node_end_[branch] = kLive;
  changed_nodes_.Note(branch);
}

void BranchForest::Unlink(BranchId branch) {
  COPPICE_DCHECK(attach_[branch] != kNoNode);
  ++version_;
  NodeId meet = std::exchange(attach_[branch], kNoNode);
  for (int64_t element = branch; meet != kRootNode; meet = tree_->node(meet).parent) {
    TreeLinks& links = links_[meet];
    links.element_sum -= element;
    if (--links.count > 0) break;
    element = ElementOf(meet);
  }
  branch_node_[branch] = kFreeSlot;
  branch_query_count_[branch] = 0;
  node_parent_[branch] = kFreeSlot;
  changed_nodes_.Note(branch);
  if (meet == kRootNode || links_[meet].count > 1) return;
  TreeLinks& links = links_[meet];  // one is left: it takes the junction's range over
  const int32_t junction = std::exchange(links.junction, kFreeSlot);
  const int32_t remaining_child = TopForestNode(links.element_sum);
  node_parent_[remaining_child] = node_parent_[junction];
  node_begin_[remaining_child] = node_begin_[junction];
  node_parent_[junction] = kFreeSlot;
  changed_nodes_.Note(remaining_child);
  changed_nodes_.Note(junction);
  free_junctions_.push_back(junction);
}

void BranchForest::Descend(BranchId branch, NodeId child) {
  LinksOf(child) = {.count = 1, .element_sum = branch};
  const NodeId from = std::exchange(attach_[branch], child);
  COPPICE_DCHECK(tree_->node(child).parent == from);
  if (from != kRootNode) links_[from].element_sum += ElementOf(child) - branch;
}

void BranchForest::OnSplit(NodeId upper, NodeId lower) {
  if (LinksOf(lower).count == 0) return;
  LinksOf(upper) = {.count = 1, .element_sum = ElementOf(lower)};
  const NodeId parent = tree_->node(upper).parent;
  if (parent != kRootNode) links_[parent].element_sum += ElementOf(upper) - ElementOf(lower);
}

void BranchForest::NoteRowChange(BranchId branch) {
  ++version_;
  changed_rows_.Note(branch);
}

void BranchForest::BeginStep() { ++step_; }

void BranchForest::SetQueries(BranchId branch, int32_t query_begin, int32_t query_count, int32_t kv_len) {
  queried_step_[branch] = step_;
  branch_query_begin_[branch] = query_begin;
  branch_kv_len_[branch] = kv_len;
  if (branch_query_count_[branch] == query_count) return;
  branch_query_count_[branch] = query_count;
  ++version_;
}

void BranchForest::EndStep() {
  for (BranchId b = 0; b < max_branches_; ++b) {
    if (branch_query_count_[b] == 0 || queried_step_[b] == step_) continue;
    branch_query_count_[b] = 0;
    ++version_;
  }
  // A plan that was updated at the EndStep before this one finds all that changed since.
  changed_rows_.EndPeriod();
  changed_nodes_.EndPeriod();
  changed_since_ = std::exchange(end_version_, version_);
}

attention::PrefixForestView BranchForest::View() const {
  return {
      .page_size = page_size_,
      .version = version_,
      .changed_since = changed_since_,
      .changed_branches = changed_rows_.ids(),
      .changed_nodes = changed_nodes_.ids(),
      .node_parent = node_parent_,
      .node_begin = node_begin_,
      .node_end = node_end_,
      .branch_node = branch_node_,
      .branch_query_begin = branch_query_begin_,
      .branch_query_count = branch_query_count_,
      .branch_kv_len = branch_kv_len_,
      .branch_page_begin = branch_page_begin_,
      .branch_page_capacity = branch_page_capacity_,
      .page_indices = rows_.Span<PageId>(),
  };
}

Status BranchForest::CheckIntegrity() const {
  const auto broken = [](int32_t slot, const std::string& what) {
    return Internal("forest node " + std::to_string(slot) + ": " + what);
  };
  // Which branches pass each tree node.
  std::map<NodeId, int32_t> members;
  for (BranchId b = 0; b < max_branches_; ++b) {
    if (attach_[b] == kNoNode) continue;
    for (NodeId n = attach_[b]; n != kRootNode; n = tree_->node(n).parent) ++members[n];
  }
  // A tree node is a junction unless all its branches go on together into one child, or it ends one lone branch.
  std::map<NodeId, int32_t> ways;
  for (const auto& [n, count] : members) ++ways[tree_->node(n).parent];
  for (BranchId b = 0; b < max_branches_; ++b) {
    if (attach_[b] != kNoNode) ++ways[attach_[b]];
  }
  int32_t junctions = 0;
  const auto nearest_junction = [&](NodeId n) -> int32_t {
    for (; n != kRootNode; n = tree_->node(n).parent) {
      if (ways.at(n) > 1) return links_[n].junction;
    }
    return kNoParent;
  };
  const auto check = [&](int32_t slot, int32_t parent, int32_t end) {
    if (slot < 0 || node_parent_[slot] == kFreeSlot) return broken(slot, "is free but in use");
    if (node_parent_[slot] != parent)
      return broken(slot, "has parent " + std::to_string(node_parent_[slot]) + ", expected " + std::to_string(parent));
    if (node_begin_[slot] != EndOf(parent)) return broken(slot, "does not begin where its parent ends");
    if (node_end_[slot] != end)
      return broken(slot, "ends at " + std::to_string(node_end_[slot]) + ", expected " + std::to_string(end));
    return OkStatus();
  };
  for (const auto& [n, count] : members) {
    if (links_[n].count != ways[n]) return broken(links_[n].junction, "tree node " + std::to_string(n) + " counts wrong links");
    if (ways[n] < 2) continue;
    ++junctions;
    COPPICE_RETURN_IF_ERROR(check(links_[n].junction, nearest_junction(tree_->node(n).parent), tree_->node(n).end()));
  }
  for (BranchId b = 0; b < max_branches_; ++b) {
    if ((branch_node_[b] == kFreeSlot) != (attach_[b] == kNoNode)) return broken(b, "leaf and branch slot disagree");
    if (attach_[b] != kNoNode) COPPICE_RETURN_IF_ERROR(check(b, nearest_junction(attach_[b]), kLive));
  }
  if (junctions != num_junctions()) return broken(max_branches_, "junctions are leaked");
  return OkStatus();
}

}  // namespace coppice
