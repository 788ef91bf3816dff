#include "attention/cpu/tile_generic.h"

#include <algorithm>
#include <cmath>

#include "attention/cpu/exp2.h"
#include "attention/cpu/softmax_state.h"

namespace coppice::attention::cpu {
namespace {

float ToFloat(float x) { return x; }
float ToFloat(BF16 x) { return x.ToFloat(); }
float ToFloat(F16 x) { return x.ToFloat(); }

template <class T>
void Widen(const std::byte* from, int32_t count, float* to) {
  const T* source = reinterpret_cast<const T*>(from);
  for (int32_t i = 0; i < count; ++i) to[i] = ToFloat(source[i]);
}

// Eight chains, so that compilers vectorise a sum whose order is fixed.
float Dot(const float* a, const float* b, int32_t count) {
  float sum[8] = {};
  for (int32_t i = 0; i < count; i += 8) {
    for (int32_t lane = 0; lane < 8; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

struct Scratch {
  float *k, *v, *q;  // [kKvTile][head_dim] twice, [rows][head_dim]

  Scratch(std::byte* base, int32_t head_dim)
      : k(reinterpret_cast<float*>(base)), v(k + kKvTile * head_dim), q(v + kKvTile * head_dim) {}
  static size_t Bytes(int32_t head_dim, int32_t max_rows) { return (size_t{2} * kKvTile + max_rows) * head_dim * sizeof(float); }
};

// Base-2 scores of one row against the tile's tokens [first, last); returns their maximum. Masked ones are -inf.
float Scores(const TileTask& task, const TileQuery& query, const float* q, const float* k, int32_t tile_begin, int32_t first,
             int32_t last, float* scores) {
  const bool sees_all = query.SeesAll(first, last);
  float maximum = kNegInf;
  for (int32_t index = first; index < last; ++index) {
    float score = kNegInf;
    if (sees_all || query.Sees(index)) {
      score = Dot(q, k + (index - tile_begin) * task.head_dim, task.head_dim) * task.score_scale;
      if (task.soft_cap > 0) score = kLog2E * task.soft_cap * std::tanh(score / task.soft_cap);
    }
    scores[index - first] = score;
    maximum = std::max(maximum, score);
  }
  return maximum;
}

// The online softmax step of one row over the tile's tokens [first, last).
void Accumulate(const float* scores, float tile_max, const float* v, int32_t count, int32_t head_dim, const RowState& state) {
  const float m = std::max(*state.m, tile_max);
  if (m == kNegInf) return;
  const float rescale = Rescale(*state.m, m);
  for (int32_t e = 0; e < head_dim; ++e) state.acc[e] *= rescale;
  float l = *state.l * rescale;
  for (int32_t t = 0; t < count; ++t) {
    const float p = Exp2(scores[t] - m);
    if (p == 0) continue;
    l += p;
    for (int32_t e = 0; e < head_dim; ++e) state.acc[e] += p * v[t * head_dim + e];
  }
  *state.m = m;
  *state.l = l;
}

template <class Q, class Kv>
void Run(const TileTask& task, const TileStates& states, std::byte* scratch_memory) {
  const int32_t d = task.head_dim, group = task.group_size, rows = task.num_rows();
  const Scratch scratch(scratch_memory, d);
  for (int32_t r = 0; r < rows; ++r) {
    const std::byte* q = task.q + task.queries[r / group].q_row * task.q_row_bytes + int64_t{r % group} * d * sizeof(Q);
    Widen<Q>(q, d, scratch.q + r * d);
    std::fill_n(states.acc + r * states.acc_stride, d, 0.0f);
    states.m[r] = kNegInf;
    states.l[r] = 0;
  }
  for (int32_t tile = task.kv_begin / kKvTile * kKvTile; tile < task.kv_end; tile += kKvTile) {
    const int32_t tile_begin = std::max(tile, task.kv_begin), tile_end = std::min(tile + kKvTile, task.kv_end);
    for (int32_t index = tile_begin; index < tile_end; ++index) {
      Widen<Kv>(task.kv.K(index), d, scratch.k + (index - tile_begin) * d);
      Widen<Kv>(task.kv.V(index), d, scratch.v + (index - tile_begin) * d);
    }
    for (int32_t r = 0; r < rows; ++r) {
      const TileQuery& query = task.queries[r / group];
      const int32_t first = std::max(tile_begin, query.begin), last = std::min(tile_end, query.end);
      if (first >= last) continue;
      float scores[kKvTile];
      const float tile_max = Scores(task, query, scratch.q + r * d, scratch.k, tile_begin, first, last, scores);
      Accumulate(scores, tile_max, scratch.v + (first - tile_begin) * d, last - first, d,
                 {.acc = states.acc + r * states.acc_stride, .m = states.m + r, .l = states.l + r});
    }
  }
}

template <class Q>
TileKernel ForKv(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kF32: return {"generic", 1, 8, Scratch::Bytes, Run<Q, float>};
    case DType::kBF16: return {"generic", 1, 8, Scratch::Bytes, Run<Q, BF16>};
    default: return {"generic", 1, 8, Scratch::Bytes, Run<Q, F16>};
  }
}

}  // namespace

TileKernel GenericTileKernel(DType q_dtype, DType kv_dtype) {
  switch (q_dtype) {
    case DType::kF32: return ForKv<float>(kv_dtype);
    case DType::kBF16: return ForKv<BF16>(kv_dtype);
    default: return ForKv<F16>(kv_dtype);
  }
}

}  // namespace coppice::attention::cpu
