// A forest that owns its arrays, for those that have no cache to take one from: benches, calibration, trees from the command line,
// dumped plans. Layer: attention, private.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"

namespace coppice::attention {

// Fields as in PrefixForestView. Thread-compatible.
struct OwnedForest {
  int32_t page_size = 16;
  uint64_t version = 0;
  std::vector<int32_t> node_parent, node_begin, node_end;
  std::vector<int32_t> branch_node, branch_query_begin, branch_query_count, branch_kv_len, branch_page_begin, branch_page_capacity;
  std::vector<int32_t> page_indices;
  std::vector<uint64_t> query_tree_mask;

  // Shows the arrays; valid until they change.
  PrefixForestView Forest() const;
  // Append, and return the slot. A branch's queries are rows after those of the branches before it.
  int32_t AddNode(int32_t parent, int32_t begin, int32_t end);
  int32_t AddBranch(int32_t node, int32_t kv_len, int32_t query_count, std::span<const int32_t> page_row);

  int32_t num_branches() const { return static_cast<int32_t>(branch_node.size()); }
  int32_t num_queries() const;  // rows of q: those of free slots belong to no branch
  // One more than the largest page index that a branch with queries reads; others may be garbage. REQUIRES: a valid forest.
  int64_t num_pages() const;
  // Of all nodes, those of a live node up to its longest branch: what a run that reads each token once reads. REQUIRES: as above.
  int64_t num_tokens() const;
  // The exact need of this forest and its edits in place.
  PlanCapacity Capacity() const;
};

// A level of a uniform tree.
struct TreeLevel {
  int32_t tokens = 0;   // of each node of the level
  int32_t fan_out = 1;  // nodes per parent; on the first level: roots
};

struct UniformTree {
  std::vector<TreeLevel> levels;  // the nodes of the last one are the requests
  int32_t queries = 1;            // of each request: its last tokens
  int32_t page_size = 16;
  bool share = true;         // false: each request has a root and pages of its own
  int32_t room_to_grow = 0;  // tokens that each page row also holds
};

// Adds the tree to `forest`, depth first; pages are handed out in the order of first use. REQUIRES: an empty forest.
void AddUniformTree(const UniformTree& tree, OwnedForest& forest);

// Requests and their page tables, one entry each: request r's pages are pages[begin[r] .. end[r]), which may be more than its
// kv_len tokens need; query_count as PrefixForestView has it.
struct PageTables {
  std::span<const int32_t> pages;
  std::span<const int64_t> begin, end;
  std::span<const int32_t> kv_len, query_count;
};

// Adds the forest of requests whose page tables show their sharing: pages that two tables begin with alike hold the same tokens.
// Shared are whole pages that all queries of a request see whole. Branches have the requests' order. INVALID_ARGUMENT: spans of
// different sizes, a table that lies outside of `pages`, or numbers of queries that no plan takes; the forest stays as it was.
// O(sum of tables + requests x levels).
Status AddPageTables(const PageTables& tables, OwnedForest& forest);

}  // namespace coppice::attention
