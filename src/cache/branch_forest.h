// The PrefixForest that attention is given: the part of the prefix tree that running branches use, compressed so that a node exists
// only where the set of branches changes. Edited in place, O(depth) per branch that comes or goes; ids are stable slots.
// Layer: cache. Forest rules: coppice/attention/attention.h, PrefixForestView.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/prefix_tree.h"
#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "core/buffer.h"

namespace coppice {

using BranchId = int32_t;  // a branch slot of the forest
inline constexpr BranchId kNoBranch = -1;

// Forest node b is the leaf of branch b; nodes from max_branches on are junctions: tree nodes below which at least two branches
// part. A leaf begins at the end of the nearest junction above its branch, so a lone request is one node, whatever the tree looks
// like. Thread-compatible.
class BranchForest {
 public:
  struct Capacity {
    int32_t max_branches = 0;
    int32_t pages_per_branch = 0;  // entries of a page row
    int32_t page_size = 16;
  };
  // `tree` outlives the forest.
  static Result<BranchForest> Create(const PrefixTree* tree, const Capacity& capacity);

  // Takes branch slot `branch`, with `kv_len` tokens computed, into the forest below tree node `attach`. kRootNode: it shares no
  // read (SharingMode::kNone, prompts that must be computed from the start). REQUIRES: where the branch parts from another one,
  // both have everything before that point computed.
  void Link(BranchId branch, NodeId attach, int32_t kv_len);
  void Unlink(BranchId branch);
  // No branch is linked. Takes no memory.
  void Clear();
  // A linked branch moves from its tree node to `child`, a new child of it without branches yet. Changes nothing in the forest.
  void Descend(BranchId branch, NodeId child);
  // Some linked branch goes through the tree node.
  bool LeadsToBranches(NodeId node) const { return static_cast<size_t>(node) < links_.size() && links_[node].count > 0; }
  // The forest node whose tokens the tree node's are part of. REQUIRES: LeadsToBranches(node).
  int32_t NodeOf(NodeId node) const { return TopForestNode(ElementOf(node)); }
  // PrefixTree::SplitAt made `upper` out of the upper part of `lower`.
  void OnSplit(NodeId upper, NodeId lower);

  // This step's queries of a branch; branches not named since BeginStep take no part.
  void BeginStep();
  void SetQueries(BranchId branch, int32_t query_begin, int32_t query_count, int32_t kv_len);
  void EndStep();

  // The branch's page row. Filling entries that were never read needs no notice; rewriting others needs NoteRowChange.
  std::span<PageId> Row(BranchId branch) {
    return rows_.Span<PageId>().subspan(static_cast<size_t>(branch) * pages_per_branch_, pages_per_branch_);
  }
  std::span<const PageId> Row(BranchId branch) const { return const_cast<BranchForest*>(this)->Row(branch); }
  void NoteRowChange(BranchId branch);

  // changed_since is the version at the EndStep before the last one, or at Clear. The lists of what changed stay as they are until
  // the second EndStep or Clear from now; the other arrays are edited in place.
  attention::PrefixForestView View() const;
  int32_t num_junctions() const { return max_branches_ - static_cast<int32_t>(free_junctions_.size()); }

  // Compares with a forest built anew from the tree and the attached branches. INTERNAL names the node.
  Status CheckIntegrity() const;

 private:
  // A tree node's share in the forest: how many of its tree children and attached branches lead to linked branches, and the sum of
  // their element ids. With one left, the sum is its id, so that a dissolving junction finds its remaining child without lists of
  // children.
  struct TreeLinks {
    int32_t count = 0;
    int64_t element_sum = 0;
    int32_t junction = attention::kFreeSlot;  // forest node, with count >= 2
  };
  // Changes since the EndStep before the last one: in the period up to the last one, then in that since.
  class ChangeList {
   public:
    // Takes all its memory: an id is listed once a period.
    explicit ChangeList(size_t num_ids);
    void Note(int32_t id);
    void EndPeriod();
    // Nothing changed, in no period.
    void Clear();
    std::span<const int32_t> ids() const { return ids_; }

   private:
    std::vector<int32_t> ids_, next_ids_;  // in turn, so that ids() outlives an EndPeriod
    size_t before_ = 0;                    // of the period up to the last end
    uint64_t period_ = 1;
    std::vector<uint64_t> noted_in_;  // [num_ids] the last period of each
  };
  // Elements: branches are 0..max_branches - 1, tree node t is max_branches + t.
  int64_t ElementOf(NodeId node) const { return int64_t{max_branches_} + node; }

  BranchForest(const PrefixTree* tree, const Capacity& capacity, Buffer rows);
  TreeLinks& LinksOf(NodeId node);
  // The topmost forest node at or below an element.
  int32_t TopForestNode(int64_t element) const;
  int32_t EndOf(int32_t forest_node) const { return forest_node == attention::kNoParent ? 0 : node_end_[forest_node]; }

  const PrefixTree* tree_;
  int32_t max_branches_, pages_per_branch_, page_size_;
  uint64_t version_ = 1;
  uint64_t step_ = 0;
  ChangeList changed_rows_, changed_nodes_;  // after version changed_since_: branches, forest nodes
  uint64_t changed_since_ = 1, end_version_ = 1;
  std::vector<int32_t> node_parent_, node_begin_, node_end_;  // [2 * max_branches]
  std::vector<int32_t> branch_node_, branch_query_begin_, branch_query_count_, branch_kv_len_, branch_page_begin_,
      branch_page_capacity_;
  std::vector<NodeId> attach_;          // [max_branches] tree node, kNoNode when the slot is free
  std::vector<uint64_t> queried_step_;  // [max_branches] step of the last SetQueries
  Buffer rows_;                         // page_indices: max_branches rows of pages_per_branch
  std::vector<TreeLinks> links_;        // by tree node
  std::vector<int32_t> free_junctions_;
};

}  // namespace coppice
