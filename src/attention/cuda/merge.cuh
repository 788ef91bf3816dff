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

__device__ __forceinline__ RowInfo ResolveRow(const KernelParams& p, const DeviceItem& item, int r, bool tree_mask) {
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
  const DeviceMember m = p.members[item.member_begin + member];
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

// Whether a row sees a kv index inside its item's range.
__device__ __forceinline__ bool Sees(const KernelParams& p, const RowInfo& row, int kv_index, bool tree_mask) {
  if (kv_index < row.lo || kv_index >= row.hi) return false;
  if (!tree_mask || row.q_row < 0) return true;
  const int own = kv_index - (row.hi - row.query_count);  // index among the branch's own queries
  return own < 0 || (p.tree_mask[row.q_row] >> own & 1) != 0;
}

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

// Draws the ticket of (set, kv head) after this warp's (or warpgroup's, behind a barrier) states are stored. True for the last.
__device__ __forceinline__ bool ArriveLast(const KernelParams& p, int set, int kv_head, int arrivals) {
  int32_t* ticket = p.tickets + int64_t{set} * p.num_kv_heads + kv_head;
  ptx::FenceDevice();  // states before the ticket
  if (ptx::AtomicAddDevice(ticket, 1) != arrivals - 1) return false;
  *ticket = 0;  // nobody else comes before the next launch
  return true;
}

// Folds all contributions of four rows at once, eight lanes looking after the states of each, and writes their output.
// set: of this lane's row, or -1 for none; uniform over each group of eight lanes. All lanes call.
template <class T, int kHeadDim>
__device__ __noinline__ void FoldRows(const KernelParams& p, int set, int row_in_set, int kv_head) {
  constexpr int kPerLane = kHeadDim / 32;
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  ptx::FenceDevice();  // the ticket before the states of others
  DeviceMergeSet merge{};
  if (set >= 0) merge = p.merge_sets[set];
  const int count = set >= 0 ? merge.contribution_count : 0;
  const int most = __reduce_max_sync(kAll, count);

  float m = -INFINITY, l = 0.0f;
  float acc[4][kPerLane] = {};
  for (int base = 0; base < most; base += 8) {
    const int c = base + lane % 8;
    int state = 0;
    float2 ml = {-INFINITY, 0.0f};
    if (c < count) {
      const DeviceContribution from = p.contributions[merge.contribution_begin + c];
      state = from.state_begin + kv_head * from.head_stride + row_in_set;
      ml = __ldcg(reinterpret_cast<const float2*>(p.state_ml) + state);
    }
    float m_new = ml.x;
#pragma unroll
    for (int d = 4; d > 0; d /= 2) m_new = fmaxf(m_new, __shfl_xor_sync(kAll, m_new, d));
    m_new = fmaxf(m, m_new);
    const float weight = ml.x == -INFINITY ? 0.0f : ptx::Exp2(ml.x - m_new);
    const float rescale = m == -INFINITY ? 0.0f : ptx::Exp2(m - m_new);
    float sum = weight * ml.y;
#pragma unroll
    for (int d = 4; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
    l = l * rescale + sum;
    m = m_new;
#pragma unroll
    for (int job = 0; job < 4; ++job) {
      const float job_rescale = __shfl_sync(kAll, rescale, job * 8);
      const int job_count = min(8, __shfl_sync(kAll, count, job * 8) - base);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) acc[job][i] *= job_rescale;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int64_t from = __shfl_sync(kAll, state, job * 8 + k);
        const float w = __shfl_sync(kAll, weight, job * 8 + k);
        if (k >= job_count || w == 0.0f) continue;
        const float* source = p.state_acc + from * kHeadDim + lane * kPerLane;
        if constexpr (kPerLane == 4) {
          const float4 v = __ldcg(reinterpret_cast<const float4*>(source));
          acc[job][0] += w * v.x, acc[job][1] += w * v.y, acc[job][2] += w * v.z, acc[job][3] += w * v.w;
        } else {
          const float2 v = __ldcg(reinterpret_cast<const float2*>(source));
          acc[job][0] += w * v.x, acc[job][1] += w * v.y;
        }
      }
    }
  }
  int q_row = -1, head = 0;
  if (set >= 0) {
    const int query = row_in_set / p.group_size;
    q_row = p.branches[merge.branch].query_begin + merge.query_begin + query;
    head = kv_head * p.group_size + row_in_set - query * p.group_size;
    if (p.lse != nullptr && lane % 8 == 0) p.lse[int64_t{q_row} * p.num_kv_heads * p.group_size + head] = NaturalLse(m, l);
  }
  const float inverse = l > 0.0f ? p.value_scale / l : 0.0f;
#pragma unroll
  for (int job = 0; job < 4; ++job) {
    const int job_row = __shfl_sync(kAll, q_row, job * 8);
    const int job_head = __shfl_sync(kAll, head, job * 8);
    const float scale = __shfl_sync(kAll, inverse, job * 8);
    if (job_row < 0 || lane * kPerLane >= p.head_dim) continue;
    T* to = static_cast<T*>(p.out) + job_row * p.out_row_stride + int64_t{job_head} * p.head_dim + lane * kPerLane;
    uint32_t packed[kPerLane / 2];
#pragma unroll
    for (int i = 0; i < kPerLane / 2; ++i) packed[i] = Pack<T>(acc[job][2 * i] * scale, acc[job][2 * i + 1] * scale);
    if constexpr (kPerLane == 4) {
      *reinterpret_cast<uint2*>(to) = {packed[0], packed[1]};
    } else {
      *reinterpret_cast<uint32_t*>(to) = packed[0];
    }
  }
}

}  // namespace coppice::attention::cuda
