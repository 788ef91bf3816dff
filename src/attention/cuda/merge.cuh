// Partial attention states: what a row of an item is, where its state goes, and the fold of all states of a merge set by the
// item that arrives last. Cascade Inference, "attention state" and its merge; the fold's order is fixed, whoever folds.
// Layer: attention/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attention/cuda/kernel_params.h"
#include "attention/cuda/ptx.cuh"

namespace coppice::attention::cuda {

inline constexpr float kLn2 = 0.6931471805599453f;

// One row of an item: a query under one query head of the group. Filled by the warp that loads the item.
struct alignas(16) RowInfo {
  int32_t q_row;            // of q and out; -1: no such row
  int32_t lo, hi;           // sees kv indices in [lo, hi) (and by the draft mask, where there is one)
  int32_t state;            // of kv head 0, or kDirect
  int32_t head_stride, set;
  uint8_t row_in_set, rows_in_set, head_in_group, reserved;
  uint16_t arrivals, query_count;
};
static_assert(sizeof(RowInfo) == 32);

__device__ __forceinline__ RowInfo ResolveRow(const KernelParams& p, const Task& task, int r, bool tree_mask) {
  const DeviceItem& item = task.item;
  RowInfo info{.q_row = -1, .lo = 0, .hi = INT32_MAX, .state = kDirect, .head_stride = 0, .set = -1};
  if (r >= item.rows) return info;
  int member = 0;
  if (item.rows_per_member != 0) {
    member = r / item.rows_per_member;
  } else {  // last member with row_begin <= r
    for (int low = 0, high = item.member_count; high - low > 1;) {
      const int middle = (low + high) / 2;
      (p.members[item.member_begin + middle].row_begin <= r ? low : high) = middle;
      member = low;
    }
  }
  const DeviceMember m = member == 0 ? task.first : p.members[item.member_begin + member];
  const DeviceBranch branch = p.branches[m.branch];
  const int row = r - m.row_begin;
  const int query = row / p.group_size;
  const int kv_index = branch.kv_len - branch.query_count + m.query_begin + query;
  info.q_row = branch.query_begin + m.query_begin + query;
  info.lo = p.window > 0 ? max(0, kv_index + 1 - p.window) : 0;
  info.hi = tree_mask ? branch.kv_len : kv_index + 1;
  info.state = m.state_begin < 0 ? kDirect : m.state_begin + row;
  info.head_stride = m.head_stride;
  info.set = m.set;
  info.row_in_set = row;
  info.rows_in_set = m.query_count * p.group_size;
  info.head_in_group = row - query * p.group_size;
  info.arrivals = m.arrivals;
  info.query_count = branch.query_count;
  return info;
}

// What a row sees of its item's range [begin, end).
struct VisibleRange {
  int lo, hi;
  int own = INT32_MAX;  // from this kv index on the draft mask decides
  uint64_t mask = 0;

  __device__ __forceinline__ VisibleRange(const KernelParams& p, const RowInfo& row, int begin, int end, bool tree_mask)
      : lo(max(begin, row.lo)), hi(min(end, row.hi)) {
    if (!tree_mask || row.q_row < 0) return;
    own = row.hi - row.query_count;
    mask = p.tree_mask[row.q_row];
  }
  // Bit i: it sees start + i.
  __device__ __forceinline__ uint32_t Word(int start) const {
    const auto below = [](int n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1; };  // bits [0, n)
    uint32_t word = below(hi - start) & ~below(lo - start);
    const int own_from = own - start;  // bits from here on are the mask's
    if (own_from < 32) {
      const uint64_t bits = own_from >= 0 ? mask << own_from : own_from > -64 ? mask >> -own_from : 0;
      word &= static_cast<uint32_t>(bits) | below(own_from);
    }
    return word;
  }
  __device__ __forceinline__ bool Has(int kv_index) const {
    return kv_index >= lo && kv_index < hi && (kv_index < own || (mask >> (kv_index - own) & 1) != 0);
  }
};

// For the soft cap: exact to fp32 rounding of 1, which is what the cap scales. Saturates without overflow.
__device__ __forceinline__ float Tanh(float x) { return 1.0f - __fdividef(2.0f, ptx::Exp2(x * 2.8853900817779268f) + 1.0f); }

template <class T>
__device__ __forceinline__ uint32_t Pack(float x, float y);
template <>
__device__ __forceinline__ uint32_t Pack<__nv_bfloat16>(float x, float y) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const uint32_t&>(v);
}
template <>
__device__ __forceinline__ uint32_t Pack<__half>(float x, float y) {
  const __half2 v = __floats2half2_rn(x, y);
  return reinterpret_cast<const uint32_t&>(v);
}

__device__ __forceinline__ float NaturalLse(float m, float l) { return l > 0.0f ? (m + log2f(l)) * kLn2 : -INFINITY; }

// Draws the ticket of (set, kv head), behind a barrier after which the states of this warp or warpgroup are stored. The draw releases
// them and acquires those of all who drew before. True for the last.
__device__ __forceinline__ bool ArriveLast(const KernelParams& p, int set, int kv_head, int arrivals) {
  int32_t* ticket = p.tickets + int64_t{set} * p.num_kv_heads + kv_head;
  if (ptx::AtomicAddDevice(ticket, 1) != arrivals - 1) return false;
  *ticket = 0;  // nobody else comes before the next launch
  return true;
}

// Contributions of a row that the fast fold holds in registers.
inline constexpr int kFoldWidth = 8;

// Writes one row of output, spread over the warp.
template <class T, int kPerLane>
__device__ __forceinline__ void StoreFolded(const KernelParams& p, int q_row, int head, const float (&acc)[kPerLane], float scale) {
  const int lane = threadIdx.x % 32;
  if (lane * kPerLane >= p.head_dim) return;
  T* to = static_cast<T*>(p.out) + q_row * p.out_row_stride + int64_t{head} * p.head_dim + lane * kPerLane;
  if constexpr (kPerLane == 4) {
    *reinterpret_cast<uint2*>(to) = {Pack<T>(acc[0] * scale, acc[1] * scale), Pack<T>(acc[2] * scale, acc[3] * scale)};
  } else {
    *reinterpret_cast<uint32_t*>(to) = Pack<T>(acc[0] * scale, acc[1] * scale);
  }
}

template <int kPerLane>
__device__ __forceinline__ void AddScaled(float (&acc)[kPerLane], const float* from, float weight) {
  const int lane = threadIdx.x % 32;
  if constexpr (kPerLane == 4) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(from) + lane);
    acc[0] += weight * v.x, acc[1] += weight * v.y, acc[2] += weight * v.z, acc[3] += weight * v.w;
  } else {
    const float2 v = __ldcg(reinterpret_cast<const float2*>(from) + lane);
    acc[0] += weight * v.x, acc[1] += weight * v.y;
  }
}

// Folds all contributions of up to 32 rows, one for each lane, and writes their output. set: of this lane's row, or -1 for none.
// What is known of a row (set, contributions, max, sums) is loaded by its lane, so that all rows wait together; the vectors are then
// added row by row by the whole warp. All lanes call.
template <class T, int kHeadDim>
__device__ __noinline__ void FoldRows(const KernelParams& p, int set, int row_in_set, int kv_head) {
  constexpr int kPerLane = kHeadDim / 32;
  constexpr unsigned kAll = 0xffffffffu;
  DeviceMergeSet merge{};
  if (set >= 0) merge = p.merge_sets[set];
  const int count = set >= 0 ? merge.contribution_count : 0;
  const auto state_of = [&](int c) {
    const DeviceContribution from = p.contributions[merge.contribution_begin + c];
    return from.state_begin + kv_head * from.head_stride + row_in_set;
  };
  const auto ml_of = [&](int state) { return __ldcg(reinterpret_cast<const float2*>(p.state_ml) + state); };
  int state[kFoldWidth];
  float weight[kFoldWidth];
  float m = -INFINITY, l = 0.0f;
  {
    float2 ml[kFoldWidth];
#pragma unroll
    for (int c = 0; c < kFoldWidth; ++c) state[c] = c < count ? state_of(c) : 0;
#pragma unroll
    for (int c = 0; c < kFoldWidth; ++c) ml[c] = c < count ? ml_of(state[c]) : float2{-INFINITY, 0.0f};
#pragma unroll
    for (int c = 0; c < kFoldWidth; ++c) m = fmaxf(m, ml[c].x);
    for (int c = kFoldWidth; c < count; ++c) m = fmaxf(m, ml_of(state_of(c)).x);
    const float base = m == -INFINITY ? 0.0f : m;
#pragma unroll
    for (int c = 0; c < kFoldWidth; ++c) {
      weight[c] = ptx::Exp2(ml[c].x - base);
      l += weight[c] * ml[c].y;
    }
    for (int c = kFoldWidth; c < count; ++c) {
      const float2 more = ml_of(state_of(c));
      l += ptx::Exp2(more.x - base) * more.y;
    }
  }
  int q_row = -1, head = 0;
  if (set >= 0) {
    const int query = row_in_set / p.group_size;
    q_row = p.branches[merge.branch].query_begin + merge.query_begin + query;
    head = kv_head * p.group_size + row_in_set - query * p.group_size;
    if (p.lse != nullptr) p.lse[int64_t{q_row} * p.num_kv_heads * p.group_size + head] = NaturalLse(m, l);
  }
  const float scale = l > 0.0f ? p.value_scale / l : 0.0f;
  for (unsigned rows = __ballot_sync(kAll, set >= 0); rows != 0; rows &= rows - 1) {
    const int r = __ffs(rows) - 1;
    const int r_count = __shfl_sync(kAll, count, r);
    float acc[kPerLane] = {};
#pragma unroll
    for (int c = 0; c < kFoldWidth; ++c) {
      const int64_t from = __shfl_sync(kAll, state[c], r);
      const float w = __shfl_sync(kAll, weight[c], r);
      if (c < r_count && w > 0.0f) AddScaled(acc, p.state_acc + from * kHeadDim, w);
    }
    for (int c = kFoldWidth; c < r_count; ++c) {
      const int own = c < count ? state_of(c) : 0;  // only lane r's is used
      const int64_t from = __shfl_sync(kAll, own, r);
      const float r_max = __shfl_sync(kAll, m, r);
      const float w = ptx::Exp2(ml_of(from).x - (r_max == -INFINITY ? 0.0f : r_max));
      if (w > 0.0f) AddScaled(acc, p.state_acc + from * kHeadDim, w);
    }
    StoreFolded<T>(p, __shfl_sync(kAll, q_row, r), __shfl_sync(kAll, head, r), acc, __shfl_sync(kAll, scale, r));
  }
}

}  // namespace coppice::attention::cuda
