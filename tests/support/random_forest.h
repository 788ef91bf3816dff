// Random prefix forests for tests: ragged trees, empty nodes, free slots, drafts, edits in place with stable slots, and pages
// shared exactly as a cache with copy-on-write would share them. It knows no attention; the kernels' and the planner's tests use
// it. Layer: tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "coppice/attention/attention.h"

namespace coppice::attention::testing {

struct RandomForestOptions {
  int32_t page_size = 16;
  int32_t max_branches = 12;    // branch slots; about two thirds are used at first
  int32_t max_depth = 6;        // nodes on a path
  int32_t max_segment = 80;     // tokens that a new branch adds below its fork
  int32_t max_kv_len = 400;     // per branch; its page row is reserved for this
  int32_t max_query_count = 4;  // per branch
  bool tree_masks = false;      // draft trees instead of causal queries (max_query_count at most 64)
  double empty_node = 0.15;     // a fork at the begin of a node makes an empty node above it
  double own_root = 0.1;        // a new branch shares nothing
  double idle_branch = 0.1;     // a branch has no query in a step
  double query_gap = 0.0;       // a row of q that belongs to no branch precedes a branch's rows
  bool start_empty = false;     // no branch at first: the test builds the tree
  double next_page = 0.0;       // a branch's page is the one after its last, where that is free
};

// Owns the arrays behind a PrefixForestView. Every state it can reach obeys the rules stated there. Deterministic in its seed.
class RandomForest {
 public:
  RandomForest(const RandomForestOptions& options, uint64_t seed);

  // Valid until the next edit that adds slots; contents change in place.
  PrefixForestView View() const;
  PlanCapacity Capacity() const;

  // One decode step: each branch with queries gets one token. False if some branch is at max_kv_len (then nothing changed).
  bool Grow();
  // One change of the tree: a branch comes, a branch goes, or the queries are dealt anew. Grows the version.
  void Edit();

  int32_t num_pages() const { return static_cast<int32_t>(page_refs_.size()); }
  int32_t num_query_rows() const { return num_query_rows_; }
  // The id of the token at kv index i of branch b: equal ids are the same token of the same prefix.
  uint64_t Token(int32_t b, int32_t i) const { return tokens_[b][i]; }
  const RandomForestOptions& options() const { return options_; }

  // The operations that Edit draws from. AddBranch and Fork return the slot, or -1 if slots, depth or length do not allow it.
  int32_t AddRoot(int32_t kv_len);
  int32_t Fork(int32_t source, int32_t at, int32_t own_tokens, bool empty_node = false);
  void Remove(int32_t branch);
  void DealQueries();
  // Fixed counts instead of random ones: count[b] for each used branch slot.
  void SetQueries(const std::vector<int32_t>& count);

 private:
  int32_t Uniform(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(rng_); }
  bool Chance(double p) { return std::bernoulli_distribution(p)(rng_); }
  int32_t RandomBranch();
  void AddRandomBranch();
  int32_t NewNode(int32_t parent, int32_t begin, int32_t end);
  int32_t NewBranchSlot();
  int32_t NewPage(int32_t before = -1);
  void AppendToken(int32_t branch);
  int32_t Depth(int32_t node) const;
  int32_t Height(int32_t node) const;
  int32_t NodeAt(int32_t branch, int32_t at) const;

  RandomForestOptions options_;
  std::mt19937_64 rng_;
  uint64_t version_ = 1, next_token_ = 1;
  std::vector<int32_t> node_parent_, node_begin_, node_end_;
  std::vector<int32_t> branch_node_, query_begin_, query_count_, kv_len_, page_begin_, page_capacity_;
  std::vector<int32_t> page_indices_;
  std::vector<uint64_t> masks_;
  std::vector<std::vector<uint64_t>> tokens_;
  std::vector<int32_t> page_refs_;
  int32_t num_query_rows_ = 0;
};

}  // namespace coppice::attention::testing
