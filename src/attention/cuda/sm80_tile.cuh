// A tile in the CTAs of the mma.sync kernel: load Q and KV rows (cp.async), score, softmax, accumulate (mma.sync
// m16n8k16). A warp owns sixteen rows and takes the tokens of every tile in ascending order, so that a row's bits depend on nothing
// but the row and its KV (deterministic mode needs that). Softmax: FlashAttention (Dao et al. 2022), algorithm 1, in base 2. Layer:
// attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/deterministic_fold.cuh"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/sm80_config.h"
#include "core/cuda/ptx.cuh"

namespace coppice::attention::cuda {

// KV range of one item, as resolved from live lengths: what some row sees, and what every row sees.
struct Sm80Range {
  int32_t begin, end, full_begin, full_end;
};

template <class C>
struct Sm80Storage {
  alignas(512) uint8_t q[C::kRows * C::kRowBytes];  // 512: the longest row, see Sm80Piece
  alignas(512) uint8_t kv[C::kStages][2][C::kTileBytes];
  alignas(16) int64_t token_offsets[2][C::kKvTile];  // of a tile's tokens in the pool, in elements; -1: past the end
  RowInfo rows[C::kRows];
  Sm80Range range;
  Sm80Range rows_see[C::kRows / 32];  // by warp of rows
  uint8_t completes[C::kRows];        // by row: it begins a set whose last ticket this CTA drew
  int32_t next_unit[2];
};

// Byte offset of the 16-byte piece `piece` of row `row`: rows one after the other, pieces swizzled so that the eight rows that one
// phase of ldmatrix reads lie in different banks. Rows begin at multiples of their length, so that another piece of the same row is
// an exclusive or away.
template <class C>
__device__ __forceinline__ uint32_t Sm80Piece(int row, int piece) {
  return row * C::kRowBytes + (piece ^ (row % 8)) * 16;
}

// Starts the copy of the Q rows under one kv head, whole warps of rows; what does not exist becomes zeros.
template <class C>
__device__ __forceinline__ void LoadQ(const Sm80Params& params, Sm80Storage<C>& s, int rows, int kv_head) {
  using T = typename C::Element;
  constexpr int kPieces = C::kHeadDim / 8;
  const KernelParams& p = params.plan;
  const T* q = static_cast<const T*>(p.q);
  const int wanted = (rows + 15) / 16 * 16 * kPieces;
  for (int i = threadIdx.x; i < wanted; i += C::kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const RowInfo& info = s.rows[row];
    const bool exists = info.q_row >= 0 && piece * 8 < p.head_dim;
    const T* from =
        exists ? q + info.q_row * p.q_row_stride + int64_t{kv_head * p.group_size + info.head_in_group} * p.head_dim + piece * 8
               : q;
    ptx::CopyAsync16(ptx::SharedAddress(s.q) + Sm80Piece<C>(row, piece), from, exists ? 16 : 0);
  }
}

// Starts the copy of a KV tile whose tokens' offsets are known. Tokens past the end become zeros, which a weight of zero removes.
template <class C>
__device__ __forceinline__ void LoadKv(const Sm80Params& params, Sm80Storage<C>& s, int tile, int kv_head) {
  using T = typename C::Element;
  constexpr int kPieces = C::kHeadDim / 8, kTokensAtOnce = C::kThreads / kPieces;
  const int piece = threadIdx.x % kPieces;
  const bool column = piece * 8 < params.plan.head_dim;
  const int64_t head = kv_head * params.head_stride + piece * 8;
  const T *k = static_cast<const T*>(params.k), *v = static_cast<const T*>(params.v);
  const uint32_t k_tile = ptx::SharedAddress(s.kv[tile % C::kStages][0]), v_tile = ptx::SharedAddress(s.kv[tile % C::kStages][1]);
#pragma unroll 4
  for (int j = 0; j < C::kKvTile; j += kTokensAtOnce) {
    const int token = j + threadIdx.x / kPieces;
    const int64_t offset = s.token_offsets[tile % 2][token];
    const bool exists = offset >= 0 && column;
    const int64_t from = exists ? offset + head : 0;
    const uint32_t to = Sm80Piece<C>(token, piece);
    ptx::CopyAsync16(k_tile + to, k + from, exists ? 16 : 0);
    ptx::CopyAsync16(v_tile + to, v + from, exists ? 16 : 0);
  }
}

// Sixteen rows of one warp under one kv head: a thread holds parts of rows lane / 4 and lane / 4 + 8.
template <class C>
class Sm80Rows {
  using T = typename C::Element;
  static constexpr int kScores = C::kKvTile / 2;  // registers of a tile's scores
  static constexpr int kDepth = C::kHeadDim / 16;

 public:
  __device__ __forceinline__ explicit Sm80Rows(const Sm80Storage<C>& s)
      : q_(ptx::SharedAddress(s.q) + Sm80Piece<C>(first_row() + lane() % 16, 0)) {
    Clear();
  }

  // The empty state.
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < C::kOut; ++i) out_[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) max_[half] = -INFINITY, sum_[half] = 0.0f;
  }

  // Adds the tokens of one tile that begins at kv index `start`.
  __device__ __forceinline__ void Add(const KernelParams& p, const Sm80Storage<C>& s, int stage, int start, bool tree_mask) {
    float scores[kScores / 4][4];
    Score(scores, ptx::SharedAddress(s.kv[stage][0]));
    if (p.cap_in > 0.0f) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i / 4][i % 4] = Tanh(scores[i / 4][i % 4] * p.cap_in);
    }
    if (start < s.range.full_begin || start + C::kKvTile > s.range.full_end) Mask(p, s, start, tree_mask, scores);
    Softmax(scores, p.score_scale_log2);
    Accumulate(scores, ptx::SharedAddress(s.kv[stage][1]));
  }

  // Makes the running softmax a state: sums over all columns, the maximum in base 2.
  __device__ __forceinline__ void Close(float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] += __shfl_xor_sync(kAll, sum_[half], 1);
      sum_[half] += __shfl_xor_sync(kAll, sum_[half], 2);
      max_[half] = sum_[half] > 0.0f ? max_[half] * scale_log2 : -INFINITY;
    }
  }

  // Deterministic mode: closed states in device memory, where each thread has its own part and needs no barrier. The fold goes from
  // memory to memory: a second state does not fit the registers.
  __device__ __forceinline__ void Keep(float* kept) const {
    float* to = kept + threadIdx.x;
#pragma unroll
    for (int i = 0; i < C::kOut; ++i) to[i * C::kThreads] = out_[i / 4][i % 4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to[(C::kOut + half) * C::kThreads] = max_[half];
      to[(C::kOut + 2 + half) * C::kThreads] = sum_[half];
    }
  }
  __device__ __forceinline__ void Recall(const float* kept) {
    const float* from = kept + threadIdx.x;
#pragma unroll
    for (int i = 0; i < C::kOut; ++i) out_[i / 4][i % 4] = from[i * C::kThreads];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max_[half] = from[(C::kOut + half) * C::kThreads];
      sum_[half] = from[(C::kOut + 2 + half) * C::kThreads];
    }
  }
  // state = state + next.
  static __device__ __noinline__ void FoldKept(float* state, const float* next) {
    float* x = state + threadIdx.x;
    const float* y = next + threadIdx.x;
    constexpr int kMax = C::kOut * C::kThreads, kSum = kMax + 2 * C::kThreads;
    const FoldWeights weights[2] = {{x[kMax], y[kMax]}, {x[kMax + C::kThreads], y[kMax + C::kThreads]}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = half * C::kThreads;
      x[kMax + at] = weights[half].m;
      x[kSum + at] = weights[half].Fold(x[kSum + at], y[kSum + at]);
    }
#pragma unroll 2
    for (int j = 0; j < C::kOut; j += 4) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int at = (j + c) * C::kThreads;
        x[at] = weights[c / 2].Fold(x[at], y[at]);
      }
    }
  }

  // Stores the closed states, or the output where this item is the only contribution.
  __device__ __forceinline__ void Store(const KernelParams& p, const Sm80Storage<C>& s, int kv_head) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowInfo& info = s.rows[first_row() + lane() / 4 + half * 8];
      if (info.q_row < 0) continue;
      if (info.state == kDirect) {
        const int head = kv_head * p.group_size + info.head_in_group;
        const float scale = Normalizer(p, sum_[half]);
        T* to = static_cast<T*>(p.out) + info.q_row * p.out_row_stride + int64_t{head} * p.head_dim + lane() % 4 * 2;
#pragma unroll
        for (int j = 0; j < C::kHeadDim / 8; ++j) {
          if (j * 8 >= p.head_dim) break;
          *reinterpret_cast<uint32_t*>(to + j * 8) = Pack<T>(out_[j][half * 2] * scale, out_[j][half * 2 + 1] * scale);
        }
        if (p.lse != nullptr && lane() % 4 == 0) {
          p.lse[int64_t{info.q_row} * p.num_kv_heads * p.group_size + head] = NaturalLse(max_[half], sum_[half]);
        }
      } else {
        const int64_t at = info.state + int64_t{kv_head} * info.head_stride;
        if (lane() % 4 == 0) __stcg(p.state_ml + at, float2{max_[half], sum_[half]});
        float* to = p.state_acc + at * C::kHeadDim + lane() % 4 * 2;
#pragma unroll
        for (int j = 0; j < C::kHeadDim / 8; ++j) {
          __stcg(reinterpret_cast<float2*>(to + j * 8), float2{out_[j][half * 2], out_[j][half * 2 + 1]});
        }
      }
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int first_row() { return threadIdx.x / 32 * 16; }

  // S = Q K^T: scores[j] are tokens j * 8 + lane % 4 * 2 (+ 1 for odd elements) of rows lane / 4 (+ 8 for elements 2, 3).
  __device__ __forceinline__ void Score(float (&scores)[kScores / 4][4], uint32_t k) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i / 4][i % 4] = 0.0f;
    const uint32_t base = k + Sm80Piece<C>(lane() / 16 * 8 + lane() % 8, 0);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      uint32_t a[4];
      ptx::LoadMatrix4(a, q_ ^ ((d * 2 + lane() / 16) * 16));
#pragma unroll
      for (int j = 0; j < C::kKvTile / 16; ++j) {
        uint32_t b[4];
        ptx::LoadMatrix4(b, (base ^ ((d * 2 + lane() / 8 % 2) * 16)) + j * 16 * C::kRowBytes);
        ptx::MmaM16N8K16<T>(scores[2 * j], a, b[0], b[1]);
        ptx::MmaM16N8K16<T>(scores[2 * j + 1], a, b[2], b[3]);
      }
    }
  }

  // Scores that a row does not see become -inf.
  __device__ __forceinline__ void Mask(const KernelParams& p, const Sm80Storage<C>& s, int start, bool tree_mask,
                                       float (&scores)[kScores / 4][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const VisibleRange visible(p, s.rows[first_row() + lane() / 4 + half * 8], s.range.begin, s.range.end, tree_mask);
      uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {  // eight scores of this thread lie in 32 tokens
        if (i % 8 == 0) word = visible.Word(start + i / 8 * 32) >> lane() % 4 * 2;
        if ((word >> (i % 8 / 2 * 8 + i % 2) & 1) == 0) scores[i / 2][half * 2 + i % 2] = -INFINITY;
      }
    }
  }

  // Scores become weights relative to the new maximum; older sums and output shrink to it.
  __device__ __forceinline__ void Softmax(float (&scores)[kScores / 4][4], float scale_log2) {
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m = max_[half];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) m = fmaxf(m, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
      m = fmaxf(m, __shfl_xor_sync(kAll, m, 1));
      m = fmaxf(m, __shfl_xor_sync(kAll, m, 2));
      const float base = m == -INFINITY ? 0.0f : m * scale_log2;
      rescale[half] = m == max_[half] ? 1.0f : ptx::Exp2(max_[half] * scale_log2 - base);
      sum_[half] *= rescale[half];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = scores[j][half * 2 + c];
          x = ptx::Exp2(x * scale_log2 - base);
          sum_[half] += x;
        }
      }
      max_[half] = m;
    }
    if (__any_sync(kAll, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < C::kOut; ++i) out_[i / 4][i % 4] *= rescale[i / 2 % 2];
    }
  }

  // O += P V: the weights of sixteen tokens are the A operand as they lie.
  __device__ __forceinline__ void Accumulate(const float (&weights)[kScores / 4][4], uint32_t v) {
    const uint32_t base = v + Sm80Piece<C>(lane() % 16, 0);
#pragma unroll
    for (int j = 0; j < C::kKvTile / 16; ++j) {
      const uint32_t a[4] = {Pack<T>(weights[2 * j][0], weights[2 * j][1]), Pack<T>(weights[2 * j][2], weights[2 * j][3]),
                             Pack<T>(weights[2 * j + 1][0], weights[2 * j + 1][1]),
                             Pack<T>(weights[2 * j + 1][2], weights[2 * j + 1][3])};
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        uint32_t b[4];
        ptx::LoadMatrix4Transposed(b, (base ^ ((d * 2 + lane() / 16) * 16)) + j * 16 * C::kRowBytes);
        ptx::MmaM16N8K16<T>(out_[2 * d], a, b[0], b[1]);
        ptx::MmaM16N8K16<T>(out_[2 * d + 1], a, b[2], b[3]);
      }
    }
  }

  const uint32_t q_;               // address of this thread's row of Q, piece 0; its fragments are read again for every tile
  float out_[C::kHeadDim / 8][4];  // element j * 8 + lane % 4 * 2 (+ 1) of rows lane / 4 (+ 8 for elements 2, 3)
  float max_[2], sum_[2];          // of raw scores and of this thread's columns until Close
};

}  // namespace coppice::attention::cuda
