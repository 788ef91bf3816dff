// Deterministic mode: the fold of attention states in the one order that docs/numerics.md defines, for the kernels that fold the
// units of an item and for the last item of a merge set. Cascade Inference, "attention state", gives the merge. Layer:
// attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/merge.cuh"

namespace coppice::attention::cuda {

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
    return __fmaf_rn(x, a, __fmul_rn(y, b));
  }
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

// As FoldRows, in the defined order: contributions into superblocks, superblocks into the row.
template <class T, int kHeadDim>
__device__ __noinline__ void FoldRowsDeterministic(const KernelParams& p, const FoldRow& row, int kv_head) {
  constexpr int kVectors = kHeadDim / 32;
  const int lane = threadIdx.x % 8;
  RowPart<kVectors> total, superblock;
#pragma unroll 1
  for (int c = 0; c < row.count; ++c) {
    const DeviceContribution from = p.contributions[row.contribution_begin + c];
    const int64_t state = from.state_begin + int64_t{kv_head} * from.head_stride + row.row_in_set;
    RowPart<kVectors> next;
    const float2 ml = __ldcg(p.state_ml + state);
    next.m = ml.x, next.l = ml.y;
    const float4* vectors = reinterpret_cast<const float4*>(p.state_acc + state * kHeadDim) + lane;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 v = __ldcg(vectors + i * 8);
      next.acc[i][0] = v.x, next.acc[i][1] = v.y, next.acc[i][2] = v.z, next.acc[i][3] = v.w;
    }
    if (from.begins_superblock) {
      total.Fold(superblock);
      superblock = next;
    } else {
      superblock.Fold(next);
    }
  }
  total.Fold(superblock);
  if (row.count > 0) StoreFoldedRow<T>(p, row, total.m, total.l, total.acc);
}

}  // namespace coppice::attention::cuda
