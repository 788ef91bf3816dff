// Deterministic mode: the fold of attention states in the one order that docs/numerics.md defines, for the kernels that fold the
// units of an item and for the last item of a merge set. Cascade Inference, "attention state", gives the merge. Layer:
// attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/merge.cuh"

namespace coppice::attention::cuda {

// The largest score of a unit that a row sees, and what its weights are relative to: in one place, so that every tile rounds alike.
struct UnitMaximum {
  float base, m;  // base: 0 where the row sees nothing; m: in base 2, -inf there

  __device__ __forceinline__ UnitMaximum(float largest_score, float scale_log2) {
    const float scaled = __fmul_rn(largest_score, scale_log2);
    base = largest_score == -INFINITY ? 0.0f : scaled;
    m = largest_score == -INFINITY ? -INFINITY : scaled;
  }
};
__device__ __forceinline__ float UnitWeight(float score, float scale_log2, float base) {
  return ptx::Exp2(__fmaf_rn(score, scale_log2, -base));
}

// a + b of two states' sums, written so that every use rounds alike and an empty side leaves the other's bits as they are.
struct FoldWeights {
  float m, a, b;

  __device__ __forceinline__ FoldWeights(float m_a, float m_b) : m(fmaxf(m_a, m_b)) {
    a = m_a == -INFINITY ? 0.0f : ptx::Exp2(__fsub_rn(m_a, m));
    b = m_b == -INFINITY ? 0.0f : ptx::Exp2(__fsub_rn(m_b, m));
  }
  __device__ __forceinline__ float Fold(float x, float y) const {
    if (b == 0.0f) return x;
    if (a == 0.0f) return y;
    return FoldBoth(x, y);
  }
  // The same where neither side counts nothing.
  __device__ __forceinline__ bool BothCount() const { return a != 0.0f && b != 0.0f; }
  __device__ __forceinline__ float FoldBoth(float x, float y) const { return __fmaf_rn(x, a, __fmul_rn(y, b)); }
};

// The state of a row as eight lanes hold it: lane i has vectors i, i + 8, ... of four elements.
template <int kVectors>
struct RowPart {
  float m = -INFINITY, l = 0.0f;
  float acc[kVectors][4] = {};

  __device__ __forceinline__ void Fold(const RowPart& next) {
    const FoldWeights w(m, next.m);
    m = w.m;
    l = w.Fold(l, next.l);
#pragma unroll
    for (int i = 0; i < kVectors * 4; ++i) acc[i / 4][i % 4] = w.Fold(acc[i / 4][i % 4], next.acc[i / 4][i % 4]);
  }
};

// As FoldStates, in the defined order: contributions into superblocks, superblocks into the row. The vectors of kAtOnce states are
// under way together; what they become is folded one by one.
template <int kHeadDim, int kAtOnce>
__device__ __forceinline__ FoldedRow<kHeadDim> FoldStatesInOrder(const KernelParams& p, const FoldRow& row, int kv_head,
                                                                 LoadedContribution next) {
  constexpr int kVectors = kHeadDim / 32;
  constexpr unsigned kAll = 0xffffffffu;
  static_assert(8 % kAtOnce == 0);
  const int lane = threadIdx.x % 8;
  const int most = __reduce_max_sync(kAll, row.count);
  RowPart<kVectors> total, superblock;
  int state = 0, begins = 0;
  float2 ml = {-INFINITY, 0.0f};
#pragma unroll 1
  for (int first = 0; first < most; first += kAtOnce) {
    if (first % 8 == 0) {  // each lane looks at one of the next eight
      state = next.State(kv_head, row.row_in_set);
      begins = next.BeginsSuperblock();
      ml = first + lane < row.count ? __ldcg(StoredArrays(p).ml + state) : float2{-INFINITY, 0.0f};
      next = ContributionOf(p, row, first + 8);
    }
    float4 v[kAtOnce][kVectors];
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      const int64_t from = __shfl_sync(kAll, state, first + c, 8);
      const float4* vectors = reinterpret_cast<const float4*>(p.state_acc + from * kHeadDim) + lane;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) v[c][i] = first + c < row.count ? __ldcg(vectors + i * 8) : float4{};
    }
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      RowPart<kVectors> part;
      part.m = __shfl_sync(kAll, ml.x, first + c, 8);
      part.l = __shfl_sync(kAll, ml.y, first + c, 8);
      const bool begins_superblock = __shfl_sync(kAll, begins, first + c, 8) != 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        part.acc[i][0] = v[c][i].x, part.acc[i][1] = v[c][i].y, part.acc[i][2] = v[c][i].z, part.acc[i][3] = v[c][i].w;
      }
      if (first + c >= row.count) continue;
      if (begins_superblock) {
        total.Fold(superblock);
        superblock = part;
      } else {
        superblock.Fold(part);
      }
    }
  }
  total.Fold(superblock);
  FoldedRow<kHeadDim> folded{.m = total.m, .l = total.l};
#pragma unroll
  for (int i = 0; i < kVectors * 4; ++i) folded.acc[i / 4][i % 4] = total.acc[i / 4][i % 4];
  return folded;
}

// As FoldRows, in that order.
template <class T, int kHeadDim, int kAtOnce>
__device__ __forceinline__ void FoldRowsInOrder(const KernelParams& p, const FoldRow& row, int kv_head, LoadedContribution next) {
  const auto [m, l, acc] = FoldStatesInOrder<kHeadDim, kAtOnce>(p, row, kv_head, next);
  if (row.count > 0) StoreFoldedRow<T>(p, row, m, l, acc);
}

// The same as a call of its own, for a kernel without registers to spare.
template <class T, int kHeadDim>
__device__ __noinline__ void FoldRowsDeterministic(const KernelParams& p, const FoldRow& row, int kv_head) {
  FoldRowsInOrder<T, kHeadDim, kHeadDim == 256 ? 1 : 2>(p, row, kv_head, ContributionOf(p, row, 0));
}

}  // namespace coppice::attention::cuda
