// Partial attention states: what a row of an item is, where its state goes, and the fold of all states of a merge set by the
// item that arrives last. Cascade Inference, "attention state" and its merge; the fold's order is fixed, whichever item folds.
// Layer: attention/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attention/cuda/kernel_params.h"
#include "core/cuda/ptx.cuh"

namespace coppice::attention::cuda {

inline constexpr float kLn2 = 0.6931471805599453f;

// One row of an item: a query under one query head of the group. Filled by the warp that loads the item.
struct alignas(8) ItemRow {
  int32_t q_row;   // of q and out; -1: no such row
  int32_t lo, hi;  // sees kv indices in [lo, hi) (and by the draft mask, where there is one)
  int32_t state;   // of kv head 0, or kDirect
  int32_t head_stride, set, contribution_begin;
  uint16_t contribution_count, arrivals, query_count;
  uint8_t row_in_set, rows_in_set, head_in_group;
};
static_assert(sizeof(ItemRow) == 40);
// Of a stream task.
struct alignas(16) RowInfo : ItemRow {
  int32_t ticket;          // its set's, or in a cooperative task its own: number among those of a kv head
  uint8_t rows_from_draw;  // back to the row that draws the ticket
};
static_assert(sizeof(RowInfo) == 48);

// The part of a dense row that is needed once its state is stored.
struct ArrivedRow {
  int32_t q_row;  // -1: no such row, or it has no state
  int32_t set, contribution_begin;
  uint16_t contribution_count, arrivals;
  uint8_t row_in_set, rows_in_set;
};
static_assert(sizeof(ArrivedRow) == 20);

// A struct of the plan in as few loads as it takes, all under way at once: field by field ptxas starts some of them only when
// others are there.
template <class S>
__device__ __forceinline__ S LoadPlan(const S* from) {
  constexpr int kWords = sizeof(S) / sizeof(int4);
  static_assert(sizeof(S) % sizeof(int4) == 0 && alignof(S) % alignof(int4) == 0);
  int4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldg(reinterpret_cast<const int4*>(from) + i);
  S to;
  memcpy(&to, words, sizeof(S));
  return to;
}

__device__ __forceinline__ DeviceBranch LoadBranch(const KernelParams& p, int branch) {
  const int32_t* from = &p.branches[branch].kv_len;
  const int2 begin = __ldg(reinterpret_cast<const int2*>(from));
  return {.kv_len = begin.x, .query_begin = begin.y, .query_count = __ldg(from + 2), .page_begin = 0};
}

// Which of the item's members row `r` < item.rows is of.
__device__ __forceinline__ int MemberOf(const KernelParams& p, const DeviceItem& item, int r) {
  if (item.rows_per_member != 0) return r / item.rows_per_member;
  int member = 0;  // the last with row_begin <= r
  for (int low = 0, high = item.member_count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (p.members[item.member_begin + middle].row_begin <= r ? low : high) = middle;
    member = low;
  }
  return member;
}

// Row `r` of an item, of member `m`, but for what AddBranch adds: q_row is the query's place in its branch.
__device__ __forceinline__ RowInfo RowOf(const KernelParams& p, const DeviceItem& item, const DeviceMember& m, int r) {
  RowInfo info{};
  info.q_row = -1, info.hi = INT32_MAX, info.state = kDirect, info.set = -1;
  if (r >= item.rows) return info;
  const int row = r - m.row_begin;
  const int query = row / p.group_size;
  info.q_row = m.query_begin + query;
  info.state = m.state_begin < 0 ? kDirect : m.state_begin + row;
  info.head_stride = m.head_stride;
  info.set = info.ticket = m.set;
  info.contribution_begin = m.contribution_begin;
  info.contribution_count = m.contribution_count;
  info.row_in_set = row;
  info.rows_in_set = m.query_count * p.group_size;
  info.head_in_group = row - query * p.group_size;
  info.rows_from_draw = row;
  info.arrivals = m.arrivals;
  return info;
}
__device__ __forceinline__ void AddBranch(const KernelParams& p, const DeviceBranch& branch, bool tree_mask, RowInfo& info) {
  if (info.q_row < 0) return;
  const int kv_index = branch.kv_len - branch.query_count + info.q_row;
  info.q_row += branch.query_begin;
  info.lo = p.window > 0 ? max(0, kv_index + 1 - p.window) : 0;
  info.hi = tree_mask ? branch.kv_len : kv_index + 1;
  info.query_count = branch.query_count;
}

// Row `r` of a task; first_branch: that of the task's first member, which most rows of a short task are of.
__device__ __forceinline__ RowInfo ResolveRow(const KernelParams& p, const Task& task, const DeviceBranch& first_branch, int r,
                                              bool tree_mask) {
  const int member = r < task.item.rows ? MemberOf(p, task.item, r) : 0;
  const DeviceMember m = member == 0 ? task.first : LoadPlan(p.members + task.item.member_begin + member);
  RowInfo info = RowOf(p, task.item, m, r);
  AddBranch(p, member == 0 ? first_branch : LoadBranch(p, m.branch), tree_mask, info);
  return info;
}

// The part [begin, end) of its item's range that a row sees.
struct VisibleRange {
  int lo, hi;
  int own = INT32_MAX;  // from this kv index on the draft mask decides
  uint64_t mask = 0;

  __device__ __forceinline__ VisibleRange(const KernelParams& p, const ItemRow& row, int begin, int end, bool tree_mask)
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

__device__ __forceinline__ float NaturalLse(float m, float l) { return l > 0.0f ? (m + __log2f(l)) * kLn2 : -INFINITY; }

// The factor of an accumulated row, from the sum of its weights. Everywhere the same instructions: a row that is folded
// must have the bits of one that is not, in deterministic mode.
__device__ __forceinline__ float Normalizer(const KernelParams& p, float l) {
  return l > 0.0f ? p.value_scale * ptx::Reciprocal(l) : 0.0f;
}

__device__ __forceinline__ int32_t* TicketOf(const KernelParams& p, int set, int kv_head) {
  return p.tickets + int64_t{set} * p.num_kv_heads + kv_head;
}

// Draws the ticket of (set, kv head), behind a barrier after which the states of this warp or warpgroup are stored: releases them
// and gives how many arrived before. Nothing waits for the answer before it is used.
__device__ __forceinline__ int32_t DrawTicket(const KernelParams& p, int set, int kv_head) {
  ptx::FenceRelease();
  return ptx::AtomicAddDevice(TicketOf(p, set, kv_head), 1);
}

// Called with the last ticket of a set: acquires the states of all earlier tickets.
__device__ __forceinline__ void AcquireSet(const KernelParams& p, int set, int kv_head) {
  ptx::FenceAcquire();
  *TicketOf(p, set, kv_head) = 0;  // the last arrival before the next launch
}

// Draws and, as the last, acquires. True for the last.
__device__ __forceinline__ bool ArriveLast(const KernelParams& p, int set, int kv_head, int arrivals) {
  if (DrawTicket(p, set, kv_head) != arrivals - 1) return false;
  AcquireSet(p, set, kv_head);
  return true;
}

// Called once by each CTA when it draws no more. True for the last of the launch: what the others drew comes before what it does
// next, which is to leave the counters as the next launch needs them.
__device__ __forceinline__ bool FinishesLast(const KernelParams& p) {
  ptx::FenceRelease();
  if (ptx::AtomicAddDevice(&p.counters->finished_ctas, 1) != static_cast<int>(gridDim.x) - 1) return false;
  ptx::FenceAcquire();
  return true;
}

// Overlapped tiles, and the stream tiles of their plans, weigh a row's tokens relative to a reference that moves only if a weight
// would pass 2^kMostExponent (f16 holds 2^16). m: the row's largest score among the next 32 tokens.
inline constexpr float kMostExponent = 12.0f;
__device__ __forceinline__ bool ReferenceMoves(float reference, float m, float scale_log2) {
  return m > reference && (reference == -INFINITY || (m - reference) * scale_log2 > kMostExponent);
}
__device__ __forceinline__ float BaseOfReference(float reference, float scale_log2) {
  return reference == -INFINITY ? 0.0f : reference * scale_log2;
}
// Moves it, if it must; what was summed relative to the old one is to be multiplied with the result.
__device__ __forceinline__ float MoveReference(float& reference, float m, float scale_log2) {
  if (!ReferenceMoves(reference, m, scale_log2)) return 1.0f;
  const float old = BaseOfReference(reference, scale_log2);
  const bool empty = reference == -INFINITY;
  reference = m;
  return empty ? 1.0f : ptx::Exp2(old - BaseOfReference(m, scale_log2));
}

// A row to fold under one kv head.
struct FoldRow {
  int32_t count = 0;  // its states; 0: no row
  int32_t contribution_begin = 0, row_in_set = 0;
  int32_t q_row = 0, qo_head = 0;
};

// States by index: the workspace's, in global memory, or those that a stream warp holds, in shared memory.
struct StateArrays {
  float* acc;  // [state][head_dim]
  float2* ml;  // [state]: max (base 2, scaled), sum
};
__device__ __forceinline__ StateArrays StoredArrays(const KernelParams& p) { return {p.state_acc, p.state_ml}; }

// Row `row_in_set` of the set that `info` is a row of.
template <class Row>
__device__ __forceinline__ FoldRow RowToFold(const KernelParams& p, const Row& info, int row_in_set, int kv_head) {
  const int query = row_in_set / p.group_size, first_query = info.row_in_set / p.group_size;
  return {.count = info.contribution_count,
          .contribution_begin = info.contribution_begin,
          .row_in_set = row_in_set,
          .q_row = info.q_row + query - first_query,
          .qo_head = kv_head * p.group_size + row_in_set - query * p.group_size};
}

// Writes the output and lse of a row from its folded state, kRowLanes lanes a row; lane i holds vectors i, i + kRowLanes, ...
template <class T, int kRowLanes = 8, int kVectors>
__device__ __forceinline__ void StoreFoldedRow(const KernelParams& p, const FoldRow& row, float m, float l,
                                               const float (&acc)[kVectors][4]) {
  const int lane = threadIdx.x % kRowLanes;
  if (p.lse != nullptr && lane == 0) p.lse[int64_t{row.q_row} * p.num_kv_heads * p.group_size + row.qo_head] = NaturalLse(m, l);
  const float scale = Normalizer(p, l);
  T* to = static_cast<T*>(p.out) + row.q_row * p.out_row_stride + int64_t{row.qo_head} * p.head_dim;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = (i * kRowLanes + lane) * 4;
    if (column >= p.head_dim) break;
    *reinterpret_cast<uint2*>(to + column) = {Pack<T>(acc[i][0] * scale, acc[i][1] * scale),
                                              Pack<T>(acc[i][2] * scale, acc[i][3] * scale)};
  }
}

// A contribution as loaded: taking it apart would wait for it.
struct LoadedContribution {
  int2 raw = {0, 0};

  // Of a row of its set, under a kv head.
  __device__ __forceinline__ int State(int kv_head, int row_in_set) const {
    DeviceContribution c;
    static_assert(sizeof(c) == sizeof(raw));
    memcpy(&c, &raw, sizeof(c));
    return c.state_begin + kv_head * static_cast<int>(c.head_stride) + row_in_set;
  }
  __device__ __forceinline__ bool BeginsSuperblock() const { return raw.y < 0; }  // the field above 31 bits
};
__device__ __forceinline__ LoadedContribution LoadContribution(const KernelParams& p, int index) {
  return {__ldg(reinterpret_cast<const int2*>(p.contributions) + index)};
}

// Over each eight lanes of the warp, in every lane; all lanes call. FoldRowInShared adds in the same order.
__device__ __forceinline__ float MaxOfEight(float x) {
#pragma unroll
  for (int d = 4; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}
__device__ __forceinline__ float SumOfEight(float x) {
#pragma unroll
  for (int d = 4; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}

// The weight of a state beside the largest maximum of its row's.
__device__ __forceinline__ float StateWeight(float m, float largest) { return m == -INFINITY ? 0.0f : ptx::Exp2(m - largest); }

// A row folded by kRowLanes lanes (8, or the whole warp): vectors of four elements, lane i those of i, i + kRowLanes, ...
template <int kHeadDim, int kRowLanes = 8>
struct FoldedRow {
  float m = -INFINITY, l = 0.0f;
  float acc[(kHeadDim / 4 + kRowLanes - 1) / kRowLanes][4] = {};

  // Where each eight lanes of the warp folded other states of one row: the fold of all, in every lane.
  __device__ __forceinline__ void CombineWarp() {
    constexpr unsigned kAll = 0xffffffffu;
    float largest = m;
#pragma unroll
    for (int d = 8; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, d));
    const float weight = StateWeight(m, largest);
    m = largest, l *= weight;
#pragma unroll
    for (int d = 8; d < 32; d *= 2) l += __shfl_xor_sync(kAll, l, d);
#pragma unroll
    for (auto& vector : acc) {
#pragma unroll
      for (float& x : vector) {
        x *= weight;
#pragma unroll
        for (int d = 8; d < 32; d *= 2) x += __shfl_xor_sync(kAll, x, d);
      }
    }
  }
};

// The contribution that this lane's state of a row comes from, eight lanes a row: those from `base` on. Plan data, so it may be
// asked for before the last ticket is drawn.
__device__ __forceinline__ LoadedContribution ContributionOf(const KernelParams& p, const FoldRow& row, int base, int stride = 1) {
  const int i = base + static_cast<int>(threadIdx.x % 8);
  LoadedContribution contribution;
  if (i < row.count) contribution = LoadContribution(p, row.contribution_begin + i * stride);
  return contribution;
}

template <int kVectors>
__device__ __forceinline__ void AddState(float weight, const float4 (&v)[kVectors], float (&acc)[kVectors][4]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    acc[i][0] = __fmaf_rn(weight, v[i].x, acc[i][0]), acc[i][1] = __fmaf_rn(weight, v[i].y, acc[i][1]);
    acc[i][2] = __fmaf_rn(weight, v[i].z, acc[i][2]), acc[i][3] = __fmaf_rn(weight, v[i].w, acc[i][3]);
  }
}

// Folds all states of four rows, eight lanes a row; `row` is the same in each group of eight lanes, `next` is the lane's
// ContributionOf the row's first eight. All lanes call. Its cost is latency, so the vectors of kAtOnce states are under way
// together, beside the states' maxima and the next contributions; and its code is small, since most launches run it once or twice,
// from a cold instruction cache. kRowLanes 32: a single row by the whole warp, in fewer registers, with the same bits.
template <int kHeadDim, int kAtOnce, int kRowLanes = 8>
__device__ __forceinline__ FoldedRow<kHeadDim, kRowLanes> FoldStates(const KernelParams& p, const FoldRow& row, int kv_head,
                                                                     LoadedContribution next, int stride = 1) {
  using Folded = FoldedRow<kHeadDim, kRowLanes>;
  constexpr int kVectors = sizeof(Folded::acc) / sizeof(float4);
  constexpr unsigned kAll = 0xffffffffu;
  static_assert(8 % kAtOnce == 0);
  const int lane = threadIdx.x % 8, column = threadIdx.x % kRowLanes % (kHeadDim / 4);
  const int most = __reduce_max_sync(kAll, row.count);
  Folded folded;
  auto& [m, l, acc] = folded;
  int state = 0;
  float weight = 0.0f;
  // One loop: ptxas waits for loads before it enters another that uses what they bring.
#pragma unroll 1
  for (int first = 0; first < most; first += kAtOnce) {
    const bool of_eight = first % 8 == 0;
    float2 ml = {-INFINITY, 0.0f};
    if (of_eight) {
      state = next.State(kv_head, row.row_in_set);
      if (first + lane < row.count) ml = __ldcg(StoredArrays(p).ml + state);
      next = ContributionOf(p, row, first + 8, stride);
    }
    const float4* vectors[kAtOnce];  // all of them before any load: ptxas leaves no room for the last loads else
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      const int64_t from = __shfl_sync(kAll, state, first + c, 8);
      vectors[c] = reinterpret_cast<const float4*>(p.state_acc + from * kHeadDim) + column;
    }
    float4 v[kAtOnce][kVectors];
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      const bool exists = first + c < row.count;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) v[c][i] = exists ? ptx::LoadL2(vectors[c] + i * kRowLanes, ptx::kEvictFirst) : float4{};
    }
    if (of_eight) {  // the softmax of these eight, under the latency of their vectors
      const float m_new = fmaxf(m, MaxOfEight(ml.x));
      weight = StateWeight(ml.x, m_new);
      const float rescale = StateWeight(m, m_new);
      l = l * rescale + SumOfEight(__fmul_rn(weight, ml.y));
      m = m_new;
#pragma unroll
      for (int i = 0; i < kVectors * 4; ++i) acc[i / 4][i % 4] *= rescale;
    }
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      const float w = __shfl_sync(kAll, weight, first + c, 8);
      if (w != 0.0f) AddState(w, v[c], acc);  // else there is no such state, or an empty one, which has no vector
    }
  }
  return folded;
}

// As FoldStates, and writes the rows' output.
template <class T, int kHeadDim, int kAtOnce, int kRowLanes = 8>
__device__ __forceinline__ void FoldRows(const KernelParams& p, const FoldRow& row, int kv_head, LoadedContribution next) {
  const auto [m, l, acc] = FoldStates<kHeadDim, kAtOnce, kRowLanes>(p, row, kv_head, next);
  if (row.count > 0) StoreFoldedRow<T, kRowLanes>(p, row, m, l, acc);
}

// As FoldRows, for a row whose states lie in shared memory from `states` and `ml` on, at most kMostInShared: the same bits, by
// eight lanes on their own. (With shuffles in two places ptxas no longer sees that the lanes of either are together, and waits for
// all loads before each.)
inline constexpr int kMostInShared = 8;
template <class T, int kHeadDim>
__device__ __forceinline__ void FoldRowInShared(const KernelParams& p, const FoldRow& row, const float* states, const float2* ml) {
  constexpr int kVectors = kHeadDim / 32;
  const int lane = threadIdx.x % 8;
  float m = -INFINITY;
#pragma unroll 1
  for (int c = 0; c < row.count; ++c) m = fmaxf(m, ml[c].x);
  float sums[kMostInShared];
#pragma unroll
  for (int c = 0; c < kMostInShared; ++c) sums[c] = c < row.count ? __fmul_rn(StateWeight(ml[c].x, m), ml[c].y) : 0.0f;
#pragma unroll
  for (int d = kMostInShared / 2; d > 0; d /= 2) {
#pragma unroll
    for (int c = 0; c < d; ++c) sums[c] += sums[c + d];
  }
  float acc[kVectors][4] = {};
#pragma unroll 1
  for (int c = 0; c < row.count; ++c) {
    const float weight = StateWeight(ml[c].x, m);
    if (weight == 0.0f) continue;
    float4 v[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = reinterpret_cast<const float4*>(states + c * kHeadDim)[lane + i * 8];
    AddState(weight, v, acc);
  }
  StoreFoldedRow<T>(p, row, m, sums[0], acc);
}

}  // namespace coppice::attention::cuda
