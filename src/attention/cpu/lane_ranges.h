// Scores in vectors, and what the query rows in the lanes of one each see. Include inside a region compiled for the vector's
// instruction set. Layer: attention/cpu.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_kernel.h"

namespace coppice::attention::cpu {
namespace {

// Raw products -> base-2 scores.
template <class Simd>
inline typename Simd::V ScaleScores(const TileTask& task, typename Simd::V x) {
  x = x * task.score_scale;
  if (task.soft_cap == 0) return x;
  return kLog2E * task.soft_cap * Simd::Tanh(x * (1 / task.soft_cap));
}

// Lane i is row first_row + i of the tile; lanes past the last row see nothing. Simd::InRange compares a whole vector.
template <class Simd>
struct LaneRanges {
  static constexpr int32_t kLanes = Simd::kLanes;
  alignas(64) int32_t begin[kLanes], end[kLanes];
  const TileQuery* query[kLanes];  // null for lanes without a row
  int32_t first, last;             // what any lane sees
  int32_t all_begin, all_end;      // what each lane sees without a mask; lanes without a row do not count
  bool has_tree;

  void Set(const TileTask& task, int32_t first_row) {
    first = INT32_MAX, last = 0, all_begin = 0, all_end = INT32_MAX, has_tree = false;
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const int32_t row = first_row + lane;
      query[lane] = row < task.num_rows() ? &task.queries[row / task.group_size] : nullptr;
      begin[lane] = end[lane] = 0;
      if (query[lane] == nullptr) continue;
      begin[lane] = query[lane]->begin;
      end[lane] = query[lane]->end;
      all_begin = std::max(all_begin, begin[lane]);
      all_end = std::min({all_end, end[lane], query[lane]->span_begin});
      has_tree |= query[lane]->span_begin != INT32_MAX;
      if (begin[lane] >= end[lane]) continue;
      first = std::min(first, begin[lane]);
      last = std::max(last, end[lane]);
    }
  }

  bool SeeAll(int32_t from, int32_t to) const { return all_begin <= from && to <= all_end; }

  // Bit i: lane i sees the kv index.
  uint32_t See(int32_t index) const {
    uint32_t lanes = Simd::InRange(begin, end, index);
    if (!has_tree || index < all_end) return lanes;
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      if ((lanes >> lane & 1) && !query[lane]->Sees(index)) lanes &= ~(1u << lane);
    }
    return lanes;
  }
};

}  // namespace
}  // namespace coppice::attention::cpu
