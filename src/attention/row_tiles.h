// The rows of a step's branches: merge sets of consecutive queries, and row tiles of consecutive sets, as many as a dense tile of
// the backend holds. Says nothing about what they read. Layer: attention, private.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "attention/plan_problem.h"
#include "attention/work_list.h"

namespace coppice::attention {

// Of a branch: consecutive merge sets that one dense tile holds.
struct RowTile {
  RangeId range_id;
  int32_t first_set, num_sets, first_query, num_queries;
  bool last;
};

// Set b is the first one of branch b; a branch with more takes them from those that are free.
class RowTiles {
 public:
  explicit RowTiles(const PlanProblem& problem) : problem_(problem), group_size_(problem.spec.group_size()) {}
  void Layout(Arena& arena);

  // No branch has queries.
  void Clear();
  // REQUIRES: the branch has no sets. Sets suffice for the queries of one step: all branches give back before any takes.
  void Create(int32_t branch, int32_t query_count);
  void Retire(int32_t branch);

  int32_t NumSets(int32_t branch) const { return num_sets_[branch]; }
  int32_t NumTiles(int32_t branch) const {
    return num_sets_[branch] <= problem_.tile_sets ? (num_sets_[branch] > 0) : CeilDiv(num_sets_[branch], problem_.tile_sets);
  }
  // By id; a set that no branch has is empty. Contributions are for the layout.
  std::span<MergeSet> sets() { return sets_; }
  std::span<const MergeSet> sets() const { return sets_; }
  int32_t RowsOf(int32_t set) const { return sets_[set].query_count * group_size_; }  // under one kv head

  // f(set), `count` sets of one branch from this one on.
  template <class F>
  void ForEachSet(int32_t first, int32_t count, F&& f) const {
    for (int32_t i = 0, set = first; i < count; ++i) {
      const int32_t next = next_set_[set];
      f(set);
      set = next;
    }
  }
  template <class F>
  void ForEachTile(int32_t branch, F&& f) const {
    int32_t set = branch;
    for (int32_t left = num_sets_[branch]; left > 0;) {
      RowTile tile{.range_id = problem_.TileRange(set),
                   .first_set = set,
                   .num_sets = std::min(left, problem_.tile_sets),
                   .first_query = sets_[set].query_begin,
                   .num_queries = 0,
                   .last = left <= problem_.tile_sets};
      for (int32_t i = 0; i < tile.num_sets; ++i, set = next_set_[set]) tile.num_queries += sets_[set].query_count;
      left -= tile.num_sets;
      f(tile);
    }
  }

  // Counts for Stats.
  std::span<const int32_t> tiles_of_branch() const { return tiles_of_branch_; }  // [B]
  int32_t sets_in_use() const { return sets_in_use_; }
  // Of all row tiles, of all queries: tokens that their branches' ends see more.
  int64_t tile_tokens_before() const { return tile_tokens_before_; }
  int64_t tokens_before() const { return tokens_before_; }

 private:
  void Count(int32_t branch, int32_t query_count, int32_t sign);

  const PlanProblem& problem_;
  int32_t group_size_;            // a division, and asked for every set
  std::span<MergeSet> sets_;      // [sets]
  std::span<int32_t> num_sets_;   // [B] in use
  std::span<int32_t> next_set_;   // [sets] of the same branch
  std::span<int32_t> free_sets_;  // stack of extra sets
  int32_t num_free_sets_ = 0;
  std::span<int32_t> tiles_of_branch_;
  int64_t tile_tokens_before_ = 0, tokens_before_ = 0;
  int32_t sets_in_use_ = 0;
};

}  // namespace coppice::attention
