// The seam between the plan executor and the tile kernels: one call computes the partial states of some rows over one KV range
// under one kv head. Which kernel runs is decided once, when the executor is made, from the spec and the CPU's features.
// Layer: attention/cpu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coppice/attention/attention.h"

namespace coppice::attention::cpu {

// One query of a tile: the rows of its head group follow each other. It sees kv indices [begin, end), and of those at or past
// span_begin only index j with bit j - span_begin of tree_mask set.
struct TileQuery {
  int64_t q_row;
  int32_t begin, end;
  int32_t span_begin;  // INT32_MAX: no draft tree
  uint64_t tree_mask;

  // Whether each index of [first, last) is seen.
  bool SeesAll(int32_t first, int32_t last) const { return begin <= first && last <= end && last <= span_begin; }
  bool Sees(int32_t index) const {
    return index >= begin && index < end && (index < span_begin || (tree_mask >> (index - span_begin) & 1));
  }
};

// Addresses of one kv head in one layer's pool.
struct HeadKv {
  const std::byte* k;  // element 0 of slot 0 of page 0
  const std::byte* v;
  int64_t page_bytes, slot_bytes;
  const int32_t* pages;  // the page row
  int32_t page_size;

  const std::byte* K(int32_t index) const { return k + Offset(index); }
  const std::byte* V(int32_t index) const { return v + Offset(index); }

 private:
  int64_t Offset(int32_t index) const {
    return pages[index / page_size] * page_bytes + static_cast<int64_t>(index % page_size) * slot_bytes;
  }
};

struct TileTask {
  HeadKv kv;
  int32_t kv_begin, kv_end;  // what any query sees; slots outside hold anything
  std::span<const TileQuery> queries;
  int32_t group_size, head_dim;
  const std::byte* q;  // the head group's first element in row 0
  int64_t q_row_bytes;
  float score_scale;  // sm_scale * k_scale, and log2(e) unless there is a soft cap
  float soft_cap;     // 0: off; else scores become log2(e) * soft_cap * tanh(score / soft_cap)

  int32_t num_rows() const { return static_cast<int32_t>(queries.size()) * group_size; }
};

// States of the tile's rows: acc [rows][acc_stride], unnormalised, m in base 2.
struct TileStates {
  float* acc;
  int64_t acc_stride;
  float* m;
  float* l;
};

// KV is cut into tiles at absolute multiples of this many kv indices: a row's arithmetic depends on its own range alone.
inline constexpr int32_t kKvTile = 64;

// A kernel. `run` starts from the empty state and overwrites `states`. A row's result does not depend on the other rows.
struct TileKernel {
  const char* name;
  int32_t row_multiple, dim_multiple;  // what rows and head_dim are padded to on the way
  size_t (*scratch_bytes)(int32_t head_dim, int32_t max_rows);
  void (*run)(const TileTask& task, const TileStates& states, std::byte* scratch);
};

}  // namespace coppice::attention::cpu
