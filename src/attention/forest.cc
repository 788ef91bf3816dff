// Validation of the forest and its depth-first order. Layer: attention.
#include "attention/forest.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/check.h"

namespace coppice::attention {
namespace {

// A value or limit; only ends of nodes may be kLive.
std::string Str(int64_t value) { return std::to_string(value); }
std::string End(int32_t value) { return value == kLive ? "kLive" : std::to_string(value); }
std::string Node(int32_t n) { return "node " + std::to_string(n); }
std::string Branch(int32_t b) { return "branch " + std::to_string(b); }

}  // namespace

Status ValidateSpec(const AttentionSpec& spec) {
  if (spec.num_qo_heads > kMaxHeads) {
    return InvalidArgument("num_qo_heads is " + Str(spec.num_qo_heads) + ", expected at most " + Str(kMaxHeads));
  }
  if (spec.num_kv_heads < 1) return InvalidArgument("num_kv_heads is " + Str(spec.num_kv_heads) + ", expected at least 1");
  if (spec.num_qo_heads < 1 || spec.num_qo_heads % spec.num_kv_heads != 0) {
    return InvalidArgument("num_qo_heads is " + Str(spec.num_qo_heads) + ", expected a multiple of num_kv_heads " +
                           Str(spec.num_kv_heads));
  }
  if (spec.head_dim < 8 || spec.head_dim > 256 || spec.head_dim % 8 != 0) {
    return InvalidArgument("head_dim is " + Str(spec.head_dim) + ", expected a multiple of 8 from 8 to 256");
  }
  if (!std::isfinite(spec.sm_scale)) return InvalidArgument("sm_scale is not finite; 0 means 1 / sqrt(head_dim)");
  if (!std::isfinite(spec.soft_cap) || spec.soft_cap < 0) {
    return InvalidArgument("soft_cap is " + std::to_string(spec.soft_cap) + ", expected a positive number or 0 for none");
  }
  if (spec.window < 0) return InvalidArgument("window is " + Str(spec.window) + ", expected a number of tokens or 0 for none");
  return OkStatus();
}

Result<PlanCapacity> ResolveCapacity(const AttentionSpec& spec, const PlanCapacity& capacity) {
  COPPICE_RETURN_IF_ERROR(ValidateSpec(spec));
  const auto check = [](const char* what, int32_t value, int32_t most) {
    if (value > 0 && value <= most) return OkStatus();
    return InvalidArgument(std::string("capacity: ") + what + " is " + Str(value) + ", expected 1 to " + Str(most));
  };
  COPPICE_RETURN_IF_ERROR(check("max_branches", capacity.max_branches, kMaxBranches));
  COPPICE_RETURN_IF_ERROR(check("max_queries", capacity.max_queries, kMaxRows / spec.group_size()));
  PlanCapacity resolved = capacity;
  if (resolved.max_nodes == 0) resolved.max_nodes = 2 * resolved.max_branches;
  COPPICE_RETURN_IF_ERROR(check("max_nodes", resolved.max_nodes, 2 * kMaxBranches));
  COPPICE_RETURN_IF_ERROR(check("max_page_slots", resolved.max_page_slots, INT32_MAX));
  if (resolved.page_size < 1 || resolved.page_size > 256) {
    return InvalidArgument("capacity: page_size is " + Str(resolved.page_size) + ", expected 1 to 256");
  }
  COPPICE_RETURN_IF_ERROR(check("device_images", capacity.device_images, 2));
  return resolved;
}

void ForestIndex::Layout(Arena& arena, const PlanCapacity& capacity) {
  for (std::span<int32_t>* per_node : {&parent, &begin, &end, &first_member, &last_member, &own_end_, &position, &preorder_,
                                       &first_child, &next_sibling, &first_branch_, &live_branch_}) {
    *per_node = arena.Take<int32_t>(capacity.max_nodes);
  }
  for (std::span<int32_t>* per_branch :
       {&branch_node, &query_count, &kv_len, &active_, &next_branch_, &query_begin_, &page_begin_, &page_capacity_, &row_tokens_}) {
    *per_branch = arena.Take<int32_t>(capacity.max_branches);
  }
  query_owner_ = arena.Take<int32_t>(capacity.max_queries);
}

Status ForestIndex::Build(const PrefixForestView& forest, const PlanCapacity& capacity, const ForestIndex* before) {
  COPPICE_RETURN_IF_ERROR(CheckShapes(forest, capacity));
  num_nodes_ = static_cast<int32_t>(forest.node_parent.size());
  num_branches_ = static_cast<int32_t>(forest.branch_node.size());
  has_tree_mask_ = !forest.query_tree_mask.empty();
  std::ranges::copy(forest.branch_node, branch_node.begin());
  std::ranges::copy(forest.branch_query_count, query_count.begin());
  std::ranges::copy(forest.branch_kv_len, kv_len.begin());

  COPPICE_RETURN_IF_ERROR(CheckChangedNodes(forest));
  COPPICE_RETURN_IF_ERROR(before != nullptr ? TakeChangedNodes(forest, *before) : TakeNodes(forest));
  std::ranges::fill(first_branch_.first(num_nodes_), -1);
  std::ranges::fill(live_branch_.first(num_nodes_), -1);
  std::ranges::fill(query_owner_, -1);
  for (int32_t b = num_branches_ - 1; b >= 0; --b) {
    if (const Fault fault = AddBranch(forest, capacity, b); fault != Fault::kNone) return BranchError(fault, forest, capacity, b);
  }
  KeepRows(forest);
  return OrderNodes();
}

Status ForestIndex::CheckShapes(const PrefixForestView& forest, const PlanCapacity& capacity) {
  const auto same = [](const char* a, size_t size, const char* b, size_t expected) {
    if (size == expected) return OkStatus();
    return InvalidArgument("forest: " + std::string(a) + " has " + std::to_string(size) + " entries, " + b + " has " +
                           std::to_string(expected) + "; expected as many");
  };
  const auto fits = [](const char* what, size_t size, int32_t limit) {
    if (size <= static_cast<size_t>(limit)) return OkStatus();
    return Status(StatusCode::kResourceExhausted, "forest: " + std::to_string(size) + " " + what + ", but the plan's capacity is " +
                                                      std::to_string(limit) + "; create the plan with a larger one");
  };
  if (forest.page_size != capacity.page_size) {
    return InvalidArgument("forest: page_size is " + Str(forest.page_size) + ", the plan was created for " +
                           Str(capacity.page_size));
  }
  COPPICE_RETURN_IF_ERROR(same("node_begin", forest.node_begin.size(), "node_parent", forest.node_parent.size()));
  COPPICE_RETURN_IF_ERROR(same("node_end", forest.node_end.size(), "node_parent", forest.node_parent.size()));
  const size_t branches = forest.branch_node.size();
  COPPICE_RETURN_IF_ERROR(same("branch_query_begin", forest.branch_query_begin.size(), "branch_node", branches));
  COPPICE_RETURN_IF_ERROR(same("branch_query_count", forest.branch_query_count.size(), "branch_node", branches));
  COPPICE_RETURN_IF_ERROR(same("branch_kv_len", forest.branch_kv_len.size(), "branch_node", branches));
  COPPICE_RETURN_IF_ERROR(same("branch_page_begin", forest.branch_page_begin.size(), "branch_node", branches));
  COPPICE_RETURN_IF_ERROR(same("branch_page_capacity", forest.branch_page_capacity.size(), "branch_node", branches));
  COPPICE_RETURN_IF_ERROR(fits("node slots", forest.node_parent.size(), capacity.max_nodes));
  COPPICE_RETURN_IF_ERROR(fits("branch slots", branches, capacity.max_branches));
  COPPICE_RETURN_IF_ERROR(fits("query_tree_mask entries", forest.query_tree_mask.size(), capacity.max_queries));
  return fits("page slots", forest.page_indices.size(), capacity.max_page_slots);
}

Status ForestIndex::CheckChangedNodes(const PrefixForestView& forest) const {
  if (!forest.changed_nodes) return OkStatus();
  for (size_t i = 0; i < forest.changed_nodes->size(); ++i) {
    if (const int32_t n = (*forest.changed_nodes)[i]; n < 0 || n >= num_nodes_) {
      return InvalidArgument("forest: changed_nodes[" + std::to_string(i) + "] is " + Str(n) + ", expected one of the " +
                             Str(num_nodes_) + " node slots");
    }
  }
  return OkStatus();
}

Status ForestIndex::TakeNodes(const PrefixForestView& forest) {
  std::ranges::copy(forest.node_parent, parent.begin());
  std::ranges::copy(forest.node_begin, begin.begin());
  std::ranges::copy(forest.node_end, end.begin());
  for (int32_t n = 0; n < num_nodes_; ++n) {
    if (const Fault fault = CheckNode(n); fault != Fault::kNone) return NodeError(fault, n);
  }
  return OkStatus();
}

// A node that is not named and whose parent is not either is as sound as it was.
Status ForestIndex::TakeChangedNodes(const PrefixForestView& forest, const ForestIndex& before) {
  COPPICE_DCHECK(before.num_nodes_ == num_nodes_);
  std::ranges::copy(before.parent.first(num_nodes_), parent.begin());
  std::ranges::copy(before.begin.first(num_nodes_), begin.begin());
  std::ranges::copy(before.end.first(num_nodes_), end.begin());
  for (const int32_t n : *forest.changed_nodes) {
    parent[n] = forest.node_parent[n];
    begin[n] = forest.node_begin[n];
    end[n] = forest.node_end[n];
  }
  for (const int32_t n : *forest.changed_nodes) {
    if (const Fault fault = CheckNode(n); fault != Fault::kNone) return NodeError(fault, n);
    for (int32_t c = before.first_child[n]; c >= 0; c = before.next_sibling[c]) {
      if (const Fault fault = CheckNode(c); fault != Fault::kNone) return NodeError(fault, c);
    }
  }
  return OkStatus();
}

inline ForestIndex::Fault ForestIndex::CheckNode(int32_t n) const {
  const int32_t p = parent[n], first = begin[n];
  if (p == kFreeSlot) return Fault::kNone;
  if (p < kNoParent || p >= num_nodes_ || p == n) return Fault::kNodeParent;
  if (first < 0 || first > kMaxKvLen || end[n] < first || (end[n] > kMaxKvLen && end[n] != kLive)) return Fault::kNodeRange;
  if (p == kNoParent) return first == 0 ? Fault::kNone : Fault::kRootBegin;
  if (parent[p] == kFreeSlot) return Fault::kParentFree;
  if (first == end[p]) return Fault::kNone;  // so it is not kLive
  return end[p] == kLive ? Fault::kParentLive : Fault::kNodeBegin;
}

Status ForestIndex::NodeError(Fault fault, int32_t n) const {
  const int32_t p = parent[n];
  switch (fault) {
    case Fault::kNodeParent:
      return InvalidArgument(Node(n) + ": parent is " + Str(p) + ", expected another node of the " + Str(num_nodes_) +
                             ", kNoParent or kFreeSlot");
    case Fault::kNodeRange:
      return InvalidArgument(Node(n) + ": covers [" + End(begin[n]) + ", " + End(end[n]) +
                             "), expected 0 <= begin <= end <= " + Str(kMaxKvLen) + ", or kLive as end");
    case Fault::kRootBegin: return InvalidArgument(Node(n) + ": is a root and begins at " + Str(begin[n]) + ", expected 0");
    case Fault::kParentFree: return InvalidArgument(Node(n) + ": parent " + Str(p) + " is a free slot");
    case Fault::kParentLive: return InvalidArgument(Node(n) + ": parent " + Str(p) + " ends at kLive, but only leaves may");
    default:
      return InvalidArgument(Node(n) + ": begins at " + Str(begin[n]) + ", but its parent " + Str(p) + " ends at " + End(end[p]) +
                             "; expected the same");
  }
}

inline ForestIndex::Fault ForestIndex::AddBranch(const PrefixForestView& forest, const PlanCapacity& capacity, int32_t b) {
  const int32_t n = branch_node[b], count = query_count[b];
  if (n == kFreeSlot) return count == 0 ? Fault::kNone : Fault::kFreeWithQueries;
  if (n < 0 || n >= num_nodes_) return Fault::kBranchNode;
  if (parent[n] == kFreeSlot) return Fault::kBranchNodeFree;
  const bool live = end[n] == kLive;
  if (live) {
    if (live_branch_[n] >= 0) return Fault::kLiveNodeTaken;
    live_branch_[n] = b;
  }
  if (count < 0) return Fault::kQueryCount;
  if (count == 0) return Fault::kNone;  // keeps its place; its lengths are not looked at

  if (const Fault fault = CheckQueries(forest, capacity, b); fault != Fault::kNone) return fault;
  if (const Fault fault = ClaimQueries(forest, b); fault != Fault::kNone) return fault;
  next_branch_[b] = first_branch_[n];
  first_branch_[n] = b;
  return Fault::kNone;
}

// Of a branch with queries, all that one step may change; whether another branch has the same rows of q is for ClaimQueries.
inline ForestIndex::Fault ForestIndex::CheckQueries(const PrefixForestView& forest, const PlanCapacity& capacity, int32_t b) const {
  const int32_t n = branch_node[b], count = query_count[b], length = forest.branch_kv_len[b];
  if (length < count) return Fault::kTooFewTokens;
  if (length > kMaxKvLen) return Fault::kTooManyTokens;
  if (end[n] == kLive ? length < begin[n] : length != end[n]) return Fault::kLengthOfNode;
  const int64_t row_begin = forest.branch_page_begin[b], row_capacity = forest.branch_page_capacity[b];
  if (row_begin < 0 || row_capacity < 0 || row_begin + row_capacity > static_cast<int64_t>(forest.page_indices.size())) {
    return Fault::kPageRow;
  }
  if (length > row_capacity * forest.page_size) return Fault::kPageRowShort;
  const int64_t q_begin = forest.branch_query_begin[b], q_end = q_begin + count;
  if (q_begin < 0) return Fault::kQueryBegin;
  if (q_end > capacity.max_queries) return Fault::kQueryCapacity;
  if (has_tree_mask_) {
    if (count > 64) return Fault::kMaskQueries;
    if (q_end > static_cast<int64_t>(forest.query_tree_mask.size())) return Fault::kMaskEntries;
  }
  return Fault::kNone;
}

inline ForestIndex::Fault ForestIndex::ClaimQueries(const PrefixForestView& forest, int32_t b) {
  const int32_t q_begin = forest.branch_query_begin[b], q_end = q_begin + query_count[b];
  for (int32_t q = q_begin; q < q_end; ++q) {
    if (query_owner_[q] >= 0) return Fault::kQueryTaken;
    query_owner_[q] = b;
  }
  return Fault::kNone;
}

Status ForestIndex::CheckStep(const PrefixForestView& forest, const PlanCapacity& capacity) {
  COPPICE_RETURN_IF_ERROR(CheckShapes(forest, capacity));
  if (HasCheckedRows(forest)) return OkStatus();
  const StepFaults faults = FindStepFaults(forest, capacity);
  if (faults.any) {  // which one, and of the first branch in order
    for (const int32_t b : ActiveBranches()) {
      if (const Fault fault = CheckQueries(forest, capacity, b); fault != Fault::kNone)
        return BranchError(fault, forest, capacity, b);
    }
  }
  if (!faults.rows_ascend) {
    std::ranges::fill(query_owner_, -1);
    for (const int32_t b : ActiveBranches()) {
      if (const Fault fault = ClaimQueries(forest, b); fault != Fault::kNone) return BranchError(fault, forest, capacity, b);
    }
  }
  KeepRows(forest);
  return OkStatus();
}

// A step of decoding changes lengths alone, and this is most of its planning: loops that compare whole vectors.
bool ForestIndex::HasCheckedRows(const PrefixForestView& forest) const {
  const auto same = [](std::span<const int32_t> a, std::span<const int32_t> b) {
    return std::equal(a.begin(), a.end(), b.begin());
  };
  if (forest.page_indices.size() != num_page_slots_ || forest.query_tree_mask.size() != num_masks_) return false;
  if (!same(forest.branch_query_begin, query_begin_) || !same(forest.branch_page_begin, page_begin_) ||
      !same(forest.branch_page_capacity, page_capacity_)) {
    return false;
  }
  int32_t any = 0;
  for (int32_t b = 0; b < num_branches_; ++b) any |= forest.branch_kv_len[b] > row_tokens_[b];
  return any == 0;
}

void ForestIndex::KeepRows(const PrefixForestView& forest) {
  num_page_slots_ = forest.page_indices.size();
  num_masks_ = forest.query_tree_mask.size();
  std::ranges::copy(forest.branch_query_begin, query_begin_.begin());
  std::ranges::copy(forest.branch_page_begin, page_begin_.begin());
  std::ranges::copy(forest.branch_page_capacity, page_capacity_.begin());
  for (int32_t b = 0; b < num_branches_; ++b) {
    const int64_t tokens = int64_t{page_capacity_[b]} * forest.page_size;
    row_tokens_[b] = query_count[b] > 0 ? static_cast<int32_t>(std::min<int64_t>(tokens, kMaxKvLen)) : INT32_MAX;
  }
}

// The checks of CheckQueries but for lengths against nodes, in the order of slots and without a branch.
ForestIndex::StepFaults ForestIndex::FindStepFaults(const PrefixForestView& forest, const PlanCapacity& capacity) const {
  const int32_t *counts = query_count.data(), *lengths = forest.branch_kv_len.data();
  const int32_t *query_begins = forest.branch_query_begin.data(), *row_begins = forest.branch_page_begin.data();
  const int32_t* row_capacities = forest.branch_page_capacity.data();
  const auto page_slots = static_cast<int64_t>(forest.page_indices.size());
  const int64_t most_queries = has_tree_mask_ ? 64 : INT32_MAX;
  const int64_t rows =
      has_tree_mask_ ? std::min<int64_t>(capacity.max_queries, std::ssize(forest.query_tree_mask)) : capacity.max_queries;
  int64_t rows_end = 0;
  bool any = false, ascend = true;
  for (int32_t b = 0; b < num_branches_; ++b) {
    const int64_t count = counts[b], length = lengths[b], query_begin = query_begins[b];
    const int64_t row_begin = row_begins[b], row_capacity = row_capacities[b];
    if (count == 0) continue;
    any |=
        (row_begin < 0) | (row_capacity < 0) | (row_begin + row_capacity > page_slots) | (length > row_capacity * forest.page_size);
    any |= (query_begin < 0) | (query_begin + count > rows) | (count > most_queries);
    ascend &= query_begin >= rows_end;
    rows_end = query_begin + count;
  }
  return {.any = any, .rows_ascend = ascend};
}

Status ForestIndex::BranchError(Fault fault, const PrefixForestView& forest, const PlanCapacity& capacity, int32_t b) const {
  const int32_t n = branch_node[b], count = query_count[b], length = forest.branch_kv_len[b];
  const int64_t row_begin = forest.branch_page_begin[b], row_capacity = forest.branch_page_capacity[b];
  const int64_t q_begin = forest.branch_query_begin[b], q_end = q_begin + count;
  switch (fault) {
    case Fault::kFreeWithQueries:
      return InvalidArgument(Branch(b) + ": is a free slot but has " + Str(count) + " queries, expected 0");
    case Fault::kBranchNode:
      return InvalidArgument(Branch(b) + ": ends at node " + Str(n) + ", expected one of the " + Str(num_nodes_) + " or kFreeSlot");
    case Fault::kBranchNodeFree: return InvalidArgument(Branch(b) + ": ends at node " + Str(n) + ", which is a free slot");
    case Fault::kLiveNodeTaken:
      return InvalidArgument(Node(n) + ": ends at kLive but belongs to branches " + Str(b) + " and " + Str(live_branch_[n]) +
                             "; expected one branch");
    case Fault::kQueryCount: return InvalidArgument(Branch(b) + ": has " + Str(count) + " queries, expected 0 or more");
    case Fault::kTooFewTokens:
      return InvalidArgument(Branch(b) + ": kv_len is " + Str(length) + ", expected at least its " + Str(count) + " queries");
    case Fault::kTooManyTokens:
      return InvalidArgument(Branch(b) + ": kv_len is " + Str(length) + ", expected at most " + Str(kMaxKvLen));
    case Fault::kLengthOfNode:
      return InvalidArgument(Branch(b) + ": kv_len is " + Str(length) + ", but its node " + Str(n) + " covers [" + Str(begin[n]) +
                             ", " + End(end[n]) + "); expected " + (end[n] == kLive ? "at least its begin" : "its end"));
    case Fault::kPageRow:
      return InvalidArgument(Branch(b) + ": page row is [" + Str(row_begin) + ", " + Str(row_begin + row_capacity) +
                             "), expected within page_indices of " + std::to_string(forest.page_indices.size()) + " entries");
    case Fault::kPageRowShort:
      return InvalidArgument(Branch(b) + ": kv_len is " + Str(length) + ", but its page row holds " + Str(row_capacity) +
                             " pages of " + Str(forest.page_size) + " tokens; reserve more");
    case Fault::kQueryBegin: return InvalidArgument(Branch(b) + ": queries begin at " + Str(q_begin) + ", expected 0 or more");
    case Fault::kQueryCapacity:
      return Status(StatusCode::kResourceExhausted, Branch(b) + ": queries end at row " + Str(q_end) +
                                                        ", but the plan's capacity is " + Str(capacity.max_queries) +
                                                        "; create the plan with a larger one");
    case Fault::kMaskQueries:
      return InvalidArgument(Branch(b) + ": has " + Str(count) + " queries under a tree mask, expected at most 64");
    case Fault::kMaskEntries:
      return InvalidArgument(Branch(b) + ": queries end at row " + Str(q_end) + ", but query_tree_mask has " +
                             std::to_string(forest.query_tree_mask.size()) + " entries");
    default: {
      int64_t q = q_begin;  // its own rows, then the one that was taken before
      while (query_owner_[q] == b) ++q;
      return InvalidArgument(Branch(b) + ": query row " + Str(q) + " also belongs to branch " + Str(query_owner_[q]));
    }
  }
}

Status ForestIndex::OrderNodes() {
  const auto nodes = first_child.first(num_nodes_);
  std::ranges::fill(nodes, -1);
  int32_t first_root = -1, in_use = 0;
  for (int32_t n = num_nodes_ - 1; n >= 0; --n) {  // backwards, so that sibling lists ascend
    if (parent[n] == kFreeSlot) continue;
    ++in_use;
    int32_t& head = parent[n] == kNoParent ? first_root : first_child[parent[n]];
    next_sibling[n] = head;
    head = n;
  }
  num_preorder_ = num_active_ = 0;
  for (int32_t n = first_root; n >= 0;) {
    position[n] = num_preorder_;
    preorder_[num_preorder_++] = n;
    first_member[n] = num_active_;
    for (int32_t b = first_branch_[n]; b >= 0; b = next_branch_[b]) active_[num_active_++] = b;
    own_end_[n] = num_active_;
    if (first_child[n] >= 0) {
      n = first_child[n];
      continue;
    }
    while (n >= 0) {  // leave finished subtrees
      last_member[n] = num_active_;
      if (next_sibling[n] >= 0) {
        n = next_sibling[n];
        break;
      }
      n = parent[n];
    }
  }
  if (num_preorder_ == in_use) return OkStatus();
  // Some node is on a cycle: it is no root's descendant. Walk up from one until a node repeats.
  std::ranges::fill(first_branch_.first(num_nodes_), 0);
  for (int32_t n : Preorder()) first_branch_[n] = 2;
  int32_t n = 0;
  while (parent[n] == kFreeSlot || first_branch_[n] == 2) ++n;
  while (first_branch_[n] == 0) {
    first_branch_[n] = 1;
    n = parent[n];
  }
  return InvalidArgument(Node(n) + ": is its own ancestor through parent " + Str(parent[n]) + "; expected a path to a root");
}

}  // namespace coppice::attention
