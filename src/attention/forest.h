// The prefix forest as the planner sees it: a validated copy of the caller's tree arrays with the orders that planning needs.
// Checks every rule of PrefixForestView and names the node or branch that breaks one. Decides nothing about sharing.
// Layer: attention, private.
#pragma once

#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// Largest values, so that sums and products of them can be counted in 32 and 64 bits: heads (WorkItem::heads_per_task has 16 bits),
// branches, queries, rows (queries x query heads a kv head) and kv indices.
inline constexpr int32_t kMaxHeads = 65535, kMaxBranches = 1 << 28, kMaxRows = 1 << 28, kMaxKvLen = 1 << 30;

// INVALID_ARGUMENT for a spec that no backend could compute.
Status ValidateSpec(const AttentionSpec& spec);
// As ValidateSpec, and INVALID_ARGUMENT for a capacity that holds nothing or more than can be counted. On success max_nodes is
// resolved (0 becomes 2 * max_branches).
Result<PlanCapacity> ResolveCapacity(const AttentionSpec& spec, const PlanCapacity& capacity);

// A validated forest. Build is O(nodes + branches + queries), CheckStep O(branches) where branches take rows of q as at the last
// check or in the order of their slots and O(branches + queries) elsewhere; both allocate nothing.
class ForestIndex {
 public:
  // Takes the arrays it needs; `capacity` is resolved.
  void Layout(Arena& arena, const PlanCapacity& capacity);

  // Copies and checks `forest`. INVALID_ARGUMENT or RESOURCE_EXHAUSTED with the node or branch, the value and what was expected;
  // the index is then unusable until the next Build that succeeds. before: an index of as many nodes, of which all but
  // forest.changed_nodes are taken to be the same; null: nothing is.
  Status Build(const PrefixForestView& forest, const PlanCapacity& capacity, const ForestIndex* before = nullptr);
  // Fields that may differ from the forest of the last Build under an equal version, checked as Build does: the sizes of all
  // arrays, and of branches with queries lengths, rows of q, page rows and draft masks. REQUIRES: nodes, branch_node and
  // branch_query_count as at Build, and lengths that these allow.
  Status CheckStep(const PrefixForestView& forest, const PlanCapacity& capacity);

  int32_t num_nodes() const { return num_nodes_; }
  int32_t num_branches() const { return num_branches_; }
  bool has_tree_mask() const { return has_tree_mask_; }

  // The caller's arrays as they were at Build.
  std::span<int32_t> parent, begin, end;                // [N]
  std::span<int32_t> branch_node, query_count, kv_len;  // [B]
  // [B] as at the last check that passed.
  std::span<const int32_t> query_begin() const { return query_begin_; }

  // Nodes in use, parents first, siblings by slot.
  std::span<const int32_t> Preorder() const { return preorder_.first(num_preorder_); }
  std::span<int32_t> position;  // [N] of a node in use, in Preorder
  // Branches with queries in depth-first order; those at or below node n are the positions [first_member[n], last_member[n]), of
  // which those that end there come first.
  std::span<const int32_t> ActiveBranches() const { return active_.first(num_active_); }
  std::span<const int32_t> BranchesBelow(int32_t n) const {
    return active_.subspan(first_member[n], last_member[n] - first_member[n]);
  }
  std::span<const int32_t> BranchesAt(int32_t n) const { return active_.subspan(first_member[n], own_end_[n] - first_member[n]); }
  bool IsLive(int32_t n) const { return end[n] == kLive; }
  std::span<int32_t> first_member, last_member;  // [N]
  std::span<int32_t> first_child, next_sibling;  // [N] -1 ends a list

 private:
  Status CheckShapes(const PrefixForestView& forest, const PlanCapacity& capacity);
  Status CheckChangedNodes(const PrefixForestView& forest) const;
  Status TakeNodes(const PrefixForestView& forest);
  Status TakeChangedNodes(const PrefixForestView& forest, const ForestIndex& before);
  // The fault of a node or branch. Apart from the messages, which the checks of a thousand sound ones should not carry along.
  enum class Fault : uint8_t {
    kNone,
    kNodeParent,
    kNodeRange,
    kRootBegin,
    kParentFree,
    kParentLive,
    kNodeBegin,
    kFreeWithQueries,
    kBranchNode,
    kBranchNodeFree,
    kLiveNodeTaken,
    kQueryCount,
    kTooFewTokens,
    kTooManyTokens,
    kLengthOfNode,
    kPageRow,
    kPageRowShort,
    kQueryBegin,
    kQueryCapacity,
    kMaskQueries,
    kMaskEntries,
    kQueryTaken
  };
  // Of branches with queries: whether page rows or rows of q are wrong for any, and whether their rows of q follow in the order of
  // slots.
  struct StepFaults {
    bool any, rows_ascend;
  };
  StepFaults FindStepFaults(const PrefixForestView& forest, const PlanCapacity& capacity) const;
  // Whether a step has the rows of the last one that passed, and lengths that fit into them; takes a copy of a step's that does.
  bool HasCheckedRows(const PrefixForestView& forest) const;
  void KeepRows(const PrefixForestView& forest);
  Fault CheckNode(int32_t n) const;
  Fault AddBranch(const PrefixForestView& forest, const PlanCapacity& capacity, int32_t b);
  Fault CheckQueries(const PrefixForestView& forest, const PlanCapacity& capacity, int32_t b) const;
  Fault ClaimQueries(const PrefixForestView& forest, int32_t b);
  Status NodeError(Fault fault, int32_t n) const;
  Status BranchError(Fault fault, const PrefixForestView& forest, const PlanCapacity& capacity, int32_t b) const;
  Status OrderNodes();

  int32_t num_nodes_ = 0, num_branches_ = 0, num_preorder_ = 0, num_active_ = 0;
  bool has_tree_mask_ = false;
  std::span<int32_t> preorder_, active_;
  std::span<int32_t> own_end_;                     // [N]: see BranchesAt
  std::span<int32_t> first_branch_, next_branch_;  // [N], [B]: branches with queries that end at a node
  std::span<int32_t> live_branch_;                 // [N]: the branch that ends at a live node
  std::span<int32_t> query_owner_;                 // [Q]: branch that claimed a query, to find overlaps
  // [B] of the last forest that passed, and the tokens that the page row of a branch with queries holds; INT32_MAX without queries.
  std::span<int32_t> query_begin_, page_begin_, page_capacity_, row_tokens_;
  size_t num_page_slots_ = 0, num_masks_ = 0;
};

}  // namespace coppice::attention
