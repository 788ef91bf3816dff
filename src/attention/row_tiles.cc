// Sets that come and go. Layer: attention.
#include "attention/row_tiles.h"

namespace coppice::attention {

void RowTiles::Layout(Arena& arena) {
  const int32_t num_branches = problem_.capacity.max_branches, num_sets = problem_.sizes.max_merge_sets;
  sets_ = arena.Take<MergeSet>(num_sets);
  num_sets_ = arena.Take<int32_t>(num_branches);
  next_set_ = arena.Take<int32_t>(num_sets);
  free_sets_ = arena.Take<int32_t>(num_sets);
  tiles_of_branch_ = arena.Take<int32_t>(num_branches);
}

void RowTiles::Clear() {
  num_free_sets_ = 0;
  for (int32_t set = problem_.sizes.max_merge_sets - 1; set >= problem_.capacity.max_branches; --set) {
    free_sets_[num_free_sets_++] = set;
  }
}

void RowTiles::Create(int32_t branch, int32_t query_count) {
  const int32_t count = CeilDiv(query_count, problem_.set_queries);
  num_sets_[branch] = count;
  int32_t previous = -1;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t set = i == 0 ? branch : free_sets_[--num_free_sets_];
    const int32_t first = i * problem_.set_queries;
    sets_[set] = {.branch = branch, .query_begin = first, .query_count = std::min(problem_.set_queries, query_count - first)};
    if (previous >= 0) next_set_[previous] = set;
    next_set_[set] = -1;
    previous = set;
  }
  Count(branch, query_count, 1);
}

void RowTiles::Retire(int32_t branch) {
  int32_t query_count = 0;
  ForEachSet(branch, num_sets_[branch], [&](int32_t set) {
    query_count += sets_[set].query_count;
    sets_[set] = {};
    if (set != branch) free_sets_[num_free_sets_++] = set;
  });
  Count(branch, query_count, -1);
  num_sets_[branch] = 0;
}

// A row tile sees its branch but for the queries after it, as does a query. `sign`: 1 when a branch comes, -1 when it leaves.
void RowTiles::Count(int32_t branch, int32_t query_count, int32_t sign) {
  const int64_t queries = query_count, tiles = NumTiles(branch);
  const int64_t per_tile = int64_t{problem_.tile_sets} * problem_.set_queries;
  tiles_of_branch_[branch] = sign > 0 ? NumTiles(branch) : 0;
  sets_in_use_ += sign * num_sets_[branch];
  tokens_before_ += sign * queries * (queries - 1) / 2;
  if (tiles > 1) tile_tokens_before_ += sign * ((tiles - 1) * queries - per_tile * tiles * (tiles - 1) / 2);
}

}  // namespace coppice::attention
