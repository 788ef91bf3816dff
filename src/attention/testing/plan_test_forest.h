// For the planner's tests: an editable forest with its own arrays, random ones with every legal oddity and random edits of them,
// and an H200's traits. Layer: attention, tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "attention/plan_io.h"

namespace coppice::attention::testing {

// The CUDA backend's traits of an H200 (bf16, head_dim 128).
inline BackendTraits H200Traits() {
  return {.workers = 132,
          .dense_tile_rows = 128,
          .dense_min_rows = 17,
          .dense_row_unit = 64,
          .stream_warps = 8,
          .cooperative_warps = 8,
          .kv_tile = 128,
          .native_head_dim = 128,
          .max_set_contributions = 511,
          .cuts_kv = true};
}

// A forest under edit. Node and branch slots are reused; ids are stable.
struct TestForest : PlanDump {
  explicit TestForest(int32_t page_size_in = 16) { page_size = page_size_in; }

  int32_t AddNode(int32_t parent, int32_t length) {
    const int32_t begin = parent == kNoParent ? 0 : node_end[parent];
    int32_t n = 0;
    while (n < static_cast<int32_t>(node_parent.size()) && node_parent[n] != kFreeSlot) ++n;
    if (n == static_cast<int32_t>(node_parent.size())) {
      node_parent.push_back(kFreeSlot);
      node_begin.push_back(0);
      node_end.push_back(0);
    }
    node_parent[n] = parent;
    node_begin[n] = begin;
    node_end[n] = length == kLive ? kLive : begin + length;
    ++version;
    return n;
  }
  // A branch with its own live leaf of `own` tokens below `parent`.
  int32_t AddBranch(int32_t parent, int32_t own, int32_t queries, int32_t page_capacity = 0) {
    const int32_t leaf = AddNode(parent, kLive);
    return AttachBranch(leaf, node_begin[leaf] + own, queries, page_capacity);
  }
  int32_t AttachBranch(int32_t node, int32_t kv_len, int32_t queries, int32_t page_capacity = 0) {
    int32_t b = 0;
    while (b < static_cast<int32_t>(branch_node.size()) && branch_node[b] != kFreeSlot) ++b;
    if (b == static_cast<int32_t>(branch_node.size())) {
      for (std::vector<int32_t>* a :
           {&branch_node, &branch_query_begin, &branch_query_count, &branch_kv_len, &branch_page_begin, &branch_page_capacity}) {
        a->push_back(0);
      }
      branch_page_begin[b] = -1;
    }
    branch_node[b] = node;
    branch_query_count[b] = queries;
    branch_kv_len[b] = kv_len;
    const int32_t pages = std::max(page_capacity, (kv_len + 512) / page_size + 1);
    if (branch_page_begin[b] < 0 || branch_page_capacity[b] < pages) {
      branch_page_begin[b] = static_cast<int32_t>(page_indices.size());
      branch_page_capacity[b] = pages;
      for (int32_t i = 0; i < pages; ++i) page_indices.push_back(i);
    }
    ++version;
    LayOutQueries();
    return b;
  }
  void RemoveBranch(int32_t b) {
    int32_t n = branch_node[b];
    branch_node[b] = kFreeSlot;
    branch_query_count[b] = 0;
    while (n != kNoParent && !InUse(n)) {
      const int32_t p = node_parent[n];
      node_parent[n] = kFreeSlot;
      n = p;
    }
    ++version;
    LayOutQueries();
  }
  bool InUse(int32_t n) const {
    return std::ranges::find(node_parent, n) != node_parent.end() || std::ranges::find(branch_node, n) != branch_node.end();
  }
  // Splits node n `length` tokens after its begin: the upper part is a new node, n keeps the lower part and its children.
  void SplitNode(int32_t n, int32_t length) {
    const int32_t p = node_parent[n];
    const int32_t upper = AddNode(p, length);
    node_parent[n] = upper;
    node_begin[n] = node_end[upper];
    ++version;
  }
  void LayOutQueries() {
    int32_t next = 0;
    for (size_t b = 0; b < branch_node.size(); ++b) {
      branch_query_begin[b] = next;
      next += branch_query_count[b];
    }
  }
  int32_t num_queries() const {
    int32_t total = 0;
    for (int32_t c : branch_query_count) total += c;
    return total;
  }
  // Every branch with queries one token longer: a decode step.
  void Grow(int32_t tokens = 1) {
    for (size_t b = 0; b < branch_node.size(); ++b) {
      if (branch_query_count[b] > 0 && node_end[branch_node[b]] == kLive) branch_kv_len[b] += tokens;
    }
  }
  PlanCapacity Capacity() const {
    return {.max_branches = std::max<int32_t>(1, static_cast<int32_t>(branch_node.size())),
            .max_queries = std::max(1, num_queries()),
            .max_nodes = std::max<int32_t>(1, static_cast<int32_t>(node_parent.size())),
            .max_page_slots = std::max<int32_t>(1, static_cast<int32_t>(page_indices.size())),
            .page_size = page_size};
  }
};

// The nodes that are not the same in both, those past the end of one among them.
inline std::vector<int32_t> DifferingNodes(const OwnedForest& a, const OwnedForest& b) {
  std::vector<int32_t> nodes;
  const size_t common = std::min(a.node_parent.size(), b.node_parent.size());
  for (size_t n = 0; n < std::max(a.node_parent.size(), b.node_parent.size()); ++n) {
    if (n < common && a.node_parent[n] == b.node_parent[n] && a.node_begin[n] == b.node_begin[n] && a.node_end[n] == b.node_end[n])
      continue;
    nodes.push_back(static_cast<int32_t>(n));
  }
  return nodes;
}

// Depth up to 6, ragged, empty nodes, gaps in the slots, idle branches, several queries a branch, prompt chunks.
inline TestForest RandomForest(std::mt19937& rng, int32_t max_length = 700) {
  const auto pick = [&](int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(rng); };
  TestForest forest(pick(0, 3) == 0 ? 1 : pick(1, 64));
  std::vector<int32_t> open = {kNoParent};  // where children may go
  std::vector<int32_t> depth = {0};
  const int32_t inner = pick(0, 12);
  for (int32_t i = 0; i < inner; ++i) {
    const size_t at = static_cast<size_t>(pick(0, static_cast<int32_t>(open.size()) - 1));
    if (depth[at] >= 5) continue;
    const int32_t n = forest.AddNode(open[at], pick(0, 4) == 0 ? 0 : pick(1, max_length));
    open.push_back(n);
    depth.push_back(depth[at] + 1);
  }
  const int32_t branches = pick(1, 20);
  for (int32_t i = 0; i < branches; ++i) {
    const int32_t parent = open[static_cast<size_t>(pick(0, static_cast<int32_t>(open.size()) - 1))];
    const int32_t begin = parent == kNoParent ? 0 : forest.node_end[parent];
    const int32_t kind = pick(0, 9);
    int32_t own = pick(0, 3) == 0 ? pick(0, 3) : pick(1, max_length);
    int32_t queries = kind < 6 ? 1 : kind < 8 ? pick(2, 9) : kind == 8 ? pick(10, 300) : 0;
    if (begin + own < queries) own = queries;  // a query may also lie in a shared node
    if (begin + own == 0) own = queries = 1;
    forest.AddBranch(parent, own, queries);
    if (pick(0, 5) == 0 && forest.branch_node.size() > 1) {
      forest.RemoveBranch(pick(0, static_cast<int32_t>(forest.branch_node.size()) - 1));
      // Removal may have freed inner nodes: forget them.
      for (size_t k = open.size(); k-- > 1;) {
        if (forest.node_parent[open[k]] == kFreeSlot)
          open.erase(open.begin() + static_cast<int64_t>(k)), depth.erase(depth.begin() + static_cast<int64_t>(k));
      }
    }
  }
  // A branch that ends with its node, as when tokens are scored again.
  if (pick(0, 3) == 0 && open.size() > 1) {
    const int32_t n = open[static_cast<size_t>(pick(1, static_cast<int32_t>(open.size()) - 1))];
    if (forest.node_parent[n] != kFreeSlot && forest.node_end[n] > 0) {
      const int32_t queries = std::min(forest.node_end[n], pick(1, 4));
      forest.AttachBranch(n, forest.node_end[n], queries);
      if (pick(0, 1) == 0) forest.AttachBranch(n, forest.node_end[n], queries);
    }
  }
  return forest;
}

// One random legal edit of the kind a scheduler makes; may also only move queries or lengths.
inline void RandomEdit(TestForest& forest, std::mt19937& rng) {
  const auto pick = [&](int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(rng); };
  std::vector<int32_t> inner, branches;
  for (int32_t n = 0; n < static_cast<int32_t>(forest.node_parent.size()); ++n) {
    if (forest.node_parent[n] != kFreeSlot && forest.node_end[n] != kLive) inner.push_back(n);
  }
  for (int32_t b = 0; b < static_cast<int32_t>(forest.branch_node.size()); ++b) {
    if (forest.branch_node[b] != kFreeSlot) branches.push_back(b);
  }
  const auto any = [&](const std::vector<int32_t>& list) {
    return list[static_cast<size_t>(pick(0, static_cast<int32_t>(list.size()) - 1))];
  };
  switch (pick(0, 6)) {
    case 0:
    case 1: {  // a branch comes
      if (branches.size() >= 24) return;
      const int32_t parent = inner.empty() || pick(0, 5) == 0 ? kNoParent : any(inner);
      const int32_t begin = parent == kNoParent ? 0 : forest.node_end[parent];
      const int32_t queries = pick(0, 3) == 0 ? pick(2, 200) : 1;
      forest.AddBranch(parent, std::max(pick(0, 400), queries - begin), queries);
      return;
    }
    case 2:  // a branch goes
      if (branches.size() > 1) forest.RemoveBranch(any(branches));
      return;
    case 3: {  // a node splits, and a branch may come at the split
      if (inner.empty()) return;
      const int32_t n = any(inner), length = forest.node_end[n] - forest.node_begin[n];
      if (length < 2) return;
      forest.SplitNode(n, pick(1, length - 1));
      if (branches.size() < 24 && pick(0, 1) == 0) forest.AddBranch(forest.node_parent[n], pick(1, 100), 1);
      return;
    }
    case 4: {  // a branch pauses, resumes or drafts
      if (branches.empty()) return;
      const int32_t b = any(branches);
      const int32_t count = pick(0, 5);
      forest.branch_query_count[b] = std::min(count, forest.branch_kv_len[b]);
      if (forest.node_end[forest.branch_node[b]] != kLive) forest.branch_kv_len[b] = forest.node_end[forest.branch_node[b]];
      ++forest.version;
      forest.LayOutQueries();
      return;
    }
    case 5: {  // one branch grows much, or loses rejected drafts
      if (branches.empty()) return;
      const int32_t b = any(branches), n = forest.branch_node[b];
      if (forest.node_end[n] != kLive) return;
      const int32_t low = std::max({forest.node_begin[n], forest.branch_query_count[b], 1});
      const int32_t high = std::min(forest.branch_page_capacity[b] * forest.page_size, forest.branch_kv_len[b] + 100);
      if (low <= high) forest.branch_kv_len[b] = std::clamp(forest.branch_kv_len[b] + pick(-4, 100), low, high);
      return;
    }
    default: forest.Grow();
  }
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {  // never past the page rows
    forest.branch_kv_len[b] = std::min(forest.branch_kv_len[b], forest.branch_page_capacity[b] * forest.page_size);
  }
}

}  // namespace coppice::attention::testing
