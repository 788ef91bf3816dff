// The kernel of short decode steps (kernels/short_decode.h). A cluster takes a query under one kv head; its CTAs divide the tokens,
// the warps of a CTA those and the query heads of the group, the lanes of a warp a few tokens at once and the elements of a head.
// Each lane keeps a softmax state (attention/softmax_state.h) of its tokens; states meet in the warp, then in the CTA's memory,
// then in the cluster's, each time in one order: equal steps give equal bits. KV is read once from memory for all heads of a group
// but those beyond kHeads, whose warps read it from the L1. Layer: attention/cuda.
#pragma once

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attention/cuda/kernels/short_decode_params.h"
#include "attention/cuda/lower/short_steps.h"

namespace coppice::attention::cuda::short_decode {

constexpr int kWarps = kShortThreads / 32;
constexpr int kPagesHeld = kShortMaxTokens + 2;  // of a CTA's tokens, with pages of one token

template <int kHeadDim, int kHeads>
struct Storage {
  float warp_out[kWarps][kHeads][kHeadDim];
  float2 warp_state[kWarps][kHeads];  // maximum (base 2, scaled), sum
  float out[kShortMaxGroup][kHeadDim];
  float2 state[kShortMaxGroup];
  int32_t active[kShortMaxQueries];  // branches with a query, in order
  int32_t warp_active[kWarps];
  int32_t pages[kPagesHeld];
};

__device__ inline float2 ToFloats(uint32_t pair, __nv_bfloat16) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ inline float2 ToFloats(uint32_t pair, __half) { return __half22float2(*reinterpret_cast<const __half2*>(&pair)); }
__device__ inline void StoreAs(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ inline void StoreAs(__half* to, float value) { *to = __float2half_rn(value); }
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline void PrefetchLine(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }
// The reference of weights: a maximum, or any number where no token was seen.
__device__ inline float Base(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

template <class T, int kHeadDim, int kHeads, int kCluster>
class ShortDecode {
 public:
  using Shared = Storage<kHeadDim, kHeads>;

  __device__ ShortDecode(const ShortDecodeParams& p, Shared& shared)
      : p_(p), s_(shared), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32), sets_((p.plan.group_size + kHeads - 1) / kHeads) {}

  __device__ void Run() {
    const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
    const int tasks = FindActive() * p_.plan.num_kv_heads;
    if (tasks <= cluster && cluster > 0) return;  // one cluster waits for the kernel before, so that no launch ends before that
    for (int task = cluster; task < tasks; task += clusters) {
      const Part part = PartOf(s_.active[task / p_.plan.num_kv_heads], task % p_.plan.num_kv_heads);
      LoadPages(part);
      if (task == cluster) {
        Prefetch(part);
        cudaGridDependencySynchronize();  // what the kernel before this one wrote is read below
      }
      Attend(part);
      __syncthreads();  // the warps' states are there
      MergeWarps();
      cooperative_groups::this_cluster().sync();  // the CTAs' states are there
      MergeCtas(part);
      cooperative_groups::this_cluster().sync();  // they were read
    }
    if (tasks == 0) cudaGridDependencySynchronize();
  }

 private:
  static constexpr int kLanes = kHeadDim / 8;         // of a token
  static constexpr int kTokens = 32 / kLanes;         // of a warp at once
  static constexpr int kUnroll = kHeads > 1 ? 2 : 4;  // more would not leave room for a product's CTA beside this one
  // A CTA's part of a query.
  struct Part {
    int query, kv_head, page_begin;
    int begin, end;  // kv indices
  };
  struct State {
    float maximum[kHeads], sum[kHeads], out[kHeads][8];
  };

  __device__ int page_shift() const { return p_.plan.page_shift; }
  __device__ int column() const { return lane_ % kLanes * 8; }

  // Fills s_.active, and says how many there are. The plan is there since before the step's first kernel.
  __device__ int FindActive() {
    const int num_branches = p_.plan.header->num_branches;
    int count = 0;
    for (int first = 0; first < num_branches; first += kShortThreads) {
      const int branch = first + threadIdx.x;
      const bool is_active = branch < num_branches && p_.plan.branches[branch].query_count > 0;
      const uint32_t votes = __ballot_sync(~0u, is_active);
      if (first > 0) __syncthreads();  // the counts before were read
      if (lane_ == 0) s_.warp_active[warp_] = __popc(votes);
      __syncthreads();
      int before = count;
      for (int warp = 0; warp < kWarps; ++warp) {
        if (warp < warp_) before += s_.warp_active[warp];
        count += s_.warp_active[warp];
      }
      const int place = before + __popc(votes & ((1u << lane_) - 1));
      if (is_active && place < kShortMaxQueries) s_.active[place] = branch;
    }
    __syncthreads();
    return min(count, kShortMaxQueries);
  }

  __device__ Part PartOf(int branch, int kv_head) const {
    const DeviceBranch b = p_.plan.branches[branch];
    const int first = p_.plan.window > 0 ? max(0, b.kv_len - p_.plan.window) : 0;
    const int share = ((b.kv_len - first + kCluster - 1) / kCluster + 7) & ~7;
    const int begin = min(first + static_cast<int>(blockIdx.x % kCluster) * share, b.kv_len);
    return {.query = b.query_begin,
            .kv_head = kv_head,
            .page_begin = b.page_begin,
            .begin = begin,
            .end = min(begin + share, b.kv_len)};
  }

  __device__ void LoadPages(const Part& part) {
    if (part.begin < part.end) {
      const int first = part.begin >> page_shift(), count = ((part.end - 1) >> page_shift()) - first + 1;
      for (int i = threadIdx.x; i < count; i += kShortThreads) s_.pages[i] = p_.plan.page_indices[part.page_begin + first + i];
    }
    __syncthreads();
  }

  // Of a token's K or V under the part's head.
  __device__ int64_t OffsetOf(const Part& part, int token) const {
    const int page = s_.pages[(token >> page_shift()) - (part.begin >> page_shift())];
    const int slot = token & (p_.plan.page_size - 1);
    return page * p_.page_stride + part.kv_head * p_.head_stride + slot * p_.slot_stride;
  }

  // Into the L2, of tokens that may not all be written yet: their readers wait.
  __device__ void Prefetch(const Part& part) const {
    constexpr int kLines = kHeadDim * 2 / 128;
    for (int i = threadIdx.x; i < (part.end - part.begin) * kLines; i += kShortThreads) {
      const int64_t offset = OffsetOf(part, part.begin + i / kLines) + i % kLines * 64;
      PrefetchLine(static_cast<const T*>(p_.k) + offset);
      PrefetchLine(static_cast<const T*>(p_.v) + offset);
    }
  }

  // The states of this warp's tokens and heads, to s_.warp_state and warp_out.
  __device__ void Attend(const Part& part) {
    const int set = warp_ % sets_, parts = kWarps / sets_, mine = warp_ / sets_;
    if (mine >= parts) return;
    float q[kHeads][8];
    LoadQ(part, set, q);
    State state;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      state.maximum[h] = -INFINITY;
      state.sum[h] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) state.out[h][i] = 0;
    }
    constexpr int kStep = kTokens * kUnroll;
    for (int token = part.begin + mine * kStep; token < part.end; token += parts * kStep)
      Step(part, token + lane_ / kLanes, q, state);
    MergeLanes(state);
    if (lane_ < kLanes) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float4* const to = reinterpret_cast<float4*>(&s_.warp_out[warp_][h][column()]);
        to[0] = {state.out[h][0], state.out[h][1], state.out[h][2], state.out[h][3]};
        to[1] = {state.out[h][4], state.out[h][5], state.out[h][6], state.out[h][7]};
        if (lane_ == 0) s_.warp_state[warp_][h] = {state.maximum[h], state.sum[h]};
      }
    }
  }

  __device__ void LoadQ(const Part& part, int set, float (&q)[kHeads][8]) const {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = set * kHeads + h;
      uint4 words = make_uint4(0, 0, 0, 0);
      if (head < p_.plan.group_size) {
        words = *reinterpret_cast<const uint4*>(static_cast<const T*>(p_.plan.q) + part.query * p_.plan.q_row_stride +
                                                (int64_t{part.kv_head} * p_.plan.group_size + head) * kHeadDim + column());
      }
      Spread(words, q[h]);
    }
  }

  __device__ static void Spread(const uint4& words, float (&values)[8]) {
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = ToFloats(pairs[i], T{});
      values[2 * i] = two.x;
      values[2 * i + 1] = two.y;
    }
  }

  // kUnroll tokens of this lane, kTokens apart: softmax_state's update with a block of them.
  __device__ void Step(const Part& part, int token, const float (&q)[kHeads][8], State& state) const {
    uint4 k[kUnroll], v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = token + u * kTokens;
      k[u] = v[u] = make_uint4(0, 0, 0, 0);  // slots beyond the length may hold anything
      if (at >= part.end) continue;
      const int64_t offset = OffsetOf(part, at) + column();
      k[u] = *reinterpret_cast<const uint4*>(static_cast<const T*>(p_.k) + offset);
      v[u] = *reinterpret_cast<const uint4*>(static_cast<const T*>(p_.v) + offset);
    }
    float score[kHeads][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float key[8];
      Spread(k[u], key);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(q[h][i], key[i], sum);
        score[h][u] = sum;
      }
    }
#pragma unroll
    for (int other = 1; other < kLanes; other *= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) score[h][u] += __shfl_xor_sync(~0u, score[h][u], other);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float maximum = state.maximum[h];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float& x = score[h][u];
        if (p_.plan.cap_in > 0) x = tanhf(x * p_.plan.cap_in);
        x = token + u * kTokens < part.end ? x * p_.plan.score_scale_log2 : -INFINITY;
        maximum = fmaxf(maximum, x);
      }
      const float base = Base(maximum), kept = Exp2(state.maximum[h] - base);
      state.maximum[h] = maximum;
      state.sum[h] *= kept;
#pragma unroll
      for (int i = 0; i < 8; ++i) state.out[h][i] *= kept;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        score[h][u] = Exp2(score[h][u] - base);
        state.sum[h] += score[h][u];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float value[8];
      Spread(v[u], value);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) state.out[h][i] = fmaf(score[h][u], value[i], state.out[h][i]);
      }
    }
  }

  // Of the lanes that had other tokens of the same elements.
  __device__ static void MergeLanes(State& state) {
#pragma unroll
    for (int other = kLanes; other < 32; other *= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float theirs = __shfl_xor_sync(~0u, state.maximum[h], other), maximum = fmaxf(state.maximum[h], theirs);
        const float base = Base(maximum), mine = Exp2(state.maximum[h] - base), their = Exp2(theirs - base);
        state.maximum[h] = maximum;
        state.sum[h] = state.sum[h] * mine + __shfl_xor_sync(~0u, state.sum[h], other) * their;
#pragma unroll
        for (int i = 0; i < 8; ++i) state.out[h][i] = state.out[h][i] * mine + __shfl_xor_sync(~0u, state.out[h][i], other) * their;
      }
    }
  }

  __device__ void MergeWarps() {
    const int parts = kWarps / sets_;
    for (int i = threadIdx.x; i < p_.plan.group_size * kHeadDim; i += kShortThreads) {
      const int head = i / kHeadDim, element = i % kHeadDim, set = head / kHeads, in_set = head % kHeads;
      float maximum = -INFINITY;
      for (int part = 0; part < parts; ++part) maximum = fmaxf(maximum, s_.warp_state[set + part * sets_][in_set].x);
      const float base = Base(maximum);
      float sum = 0, out = 0;
      for (int part = 0; part < parts; ++part) {
        const float2 state = s_.warp_state[set + part * sets_][in_set];
        const float weight = Exp2(state.x - base);
        sum += weight * state.y;
        out += weight * s_.warp_out[set + part * sets_][in_set][element];
      }
      s_.out[head][element] = out;
      if (element == 0) s_.state[head] = {maximum, sum};
    }
  }

  // This CTA's share of the output.
  __device__ void MergeCtas(const Part& part) {
    const auto cluster = cooperative_groups::this_cluster();
    const int share = p_.plan.group_size * kHeadDim / kCluster;
    T* const to =
        static_cast<T*>(p_.plan.out) + part.query * p_.plan.out_row_stride + int64_t{part.kv_head} * p_.plan.group_size * kHeadDim;
    for (int i = threadIdx.x; i < share; i += kShortThreads) {
      const int at = static_cast<int>(cluster.block_rank()) * share + i, head = at / kHeadDim, element = at % kHeadDim;
      float2 states[kCluster];
      float outs[kCluster];
#pragma unroll
      for (int cta = 0; cta < kCluster; ++cta) {
        states[cta] = *cluster.map_shared_rank(&s_.state[head], cta);
        outs[cta] = *cluster.map_shared_rank(&s_.out[head][element], cta);
      }
      float maximum = -INFINITY, sum = 0, out = 0;
#pragma unroll
      for (int cta = 0; cta < kCluster; ++cta) maximum = fmaxf(maximum, states[cta].x);
      const float base = Base(maximum);
#pragma unroll
      for (int cta = 0; cta < kCluster; ++cta) {
        const float weight = Exp2(states[cta].x - base);
        sum += weight * states[cta].y;
        out += weight * outs[cta];
      }
      StoreAs(to + at, sum > 0 ? out / sum * p_.plan.value_scale : 0.0f);
      if (p_.plan.lse != nullptr && element == 0) {
        constexpr float kLn2 = 0.69314718f;
        float* const lse = p_.plan.lse + int64_t{part.query} * p_.plan.num_kv_heads * p_.plan.group_size;
        lse[part.kv_head * p_.plan.group_size + head] = sum > 0 ? kLn2 * (base + log2f(sum)) : -INFINITY;
      }
    }
  }

  const ShortDecodeParams& p_;
  Shared& s_;
  const int warp_, lane_;
  const int sets_;  // of kHeads heads; warps take them in turn
};

template <class T, int kHeadDim, int kHeads, int kCluster>
__global__ void __launch_bounds__(kShortThreads, 2) Kernel(const __grid_constant__ ShortDecodeParams p) {
  cudaTriggerProgrammaticLaunchCompletion();  // the next kernel may start, if it waits for this one as this one does
  __shared__ Storage<kHeadDim, kHeads> shared;
  ShortDecode<T, kHeadDim, kHeads, kCluster>(p, shared).Run();
}

// More than eight CTAs in a cluster must be asked for, and have a place. Null: they have none.
template <int kCluster>
const void* Prepare(const void* kernel) {
  if constexpr (kCluster > 8) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kCluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kShortCtas);
    config.blockDim = dim3(kShortThreads);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    const bool has_place = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
                           cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess && clusters > 0;
    if (!has_place) {
      cudaGetLastError();  // leaves no error behind
      return nullptr;
    }
  }
  return kernel;
}

// Null where there is none.
template <class T, int kCluster>
const void* KernelOf(int head_dim, int group_size) {
  const auto prepared = [](auto* kernel) { return Prepare<kCluster>(reinterpret_cast<const void*>(kernel)); };
  switch (head_dim) {
    case 64: return prepared(group_size == 1 ? &Kernel<T, 64, 1, kCluster> : &Kernel<T, 64, 4, kCluster>);
    case 128: return prepared(group_size == 1 ? &Kernel<T, 128, 1, kCluster> : &Kernel<T, 128, 4, kCluster>);
    default: return nullptr;
  }
}
template <class T>
const void* KernelFor(int head_dim, int group_size, int cluster) {
  return cluster == kShortWideCluster ? KernelOf<T, kShortWideCluster>(head_dim, group_size)
                                      : KernelOf<T, kShortCluster>(head_dim, group_size);
}

}  // namespace coppice::attention::cuda::short_decode
