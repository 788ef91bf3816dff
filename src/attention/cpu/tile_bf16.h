// Shared by the tiles that multiply bf16 pairs: the query rows in the lanes, the masks. Include it
// inside a region compiled for AVX512-BF16 and AMX; everything has internal linkage.
// Layer: attention/cpu.
#pragma once

#include <immintrin.h>

#include <cmath>

#include "attention/cpu/amx_session.h"
#include "attention/cpu/lane_ranges.h"
#include "attention/cpu/tile_kernel.h"
#include "attention/cpu/tile_vectors.h"

namespace coppice::attention::cpu {
namespace {

using Lanes = TileVectors<16>;
using F32 = Lanes::F32;
using Ranges = LaneRanges<Lanes>;

constexpr int32_t kLanes = 16;
// A score may exceed m by this much (base 2) before m moves: rescaling becomes rare, P stays below 2^8 and loses no precision.
constexpr float kSlack = 8.0f;

// In place: row i, element j <-> row j, element i. The dwords move unchanged.
inline void Transpose16x16(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Row-major bf16 rows -> [group of 16 rows][d_pad / 2 pairs][16 rows], zero-padded to d_pad dims, a multiple of 32. A negative
// scale is folded into Q.
inline void PackQ(const TileTask& task, int32_t d_pad, std::byte* q) {
  const __m512i sign = _mm512_set1_epi32(task.score_scale < 0 ? static_cast<int32_t>(0x80008000u) : 0);
  for (int32_t first_row = 0; first_row < task.num_rows(); first_row += kLanes) {
    for (int32_t e = 0; e < d_pad; e += 32, q += 1024) {
      const __mmask32 valid = task.head_dim - e >= 32 ? ~__mmask32{0} : (__mmask32{1} << (task.head_dim - e)) - 1;
      __m512i r[16];
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        const int32_t row = first_row + lane;
        r[lane] = _mm512_setzero_si512();
        if (row >= task.num_rows()) continue;
        const std::byte* from = task.q + task.queries[row / task.group_size].q_row * task.q_row_bytes +
                                (static_cast<int64_t>(row % task.group_size) * task.head_dim + e) * 2;
        r[lane] = _mm512_xor_si512(_mm512_maskz_loadu_epi16(valid, from), sign);
      }
      Transpose16x16(r);
      for (int32_t pair = 0; pair < 16; ++pair) _mm512_store_si512(q + pair * 64, r[pair]);
    }
  }
}

// Masks, soft cap: products of `count` tokens from kv index `index` on, [token][16 rows], become base-2 scores if there is a cap;
// masked ones -inf whatever they were.
inline void MaskScores(const TileTask& task, const Ranges& range, int32_t index, int32_t count, float* s) {
  const float cap = task.soft_cap;
  for (int32_t t = 0; t < count; ++t) {
    F32 x = Lanes::Load(s + t * kLanes);
    if (cap > 0) {
      x = kLog2E * cap * Lanes::Tanh(x * (std::abs(task.score_scale) / cap));
    }
    Lanes::Store(s + t * kLanes, Lanes::KeepLanes(x, range.See(index + t)));
  }
}

// Two tokens' weights of 16 rows, rounded to bf16: dword i holds those of row i, the first token's in the low half.
inline __m512i RoundToPairs(F32 first, F32 second) {
  const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                         19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(pairs, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}
// Back to fp32.
inline F32 LowOfPairs(__m512i pairs) { return Lanes::Even(reinterpret_cast<Lanes::U32>(pairs)); }
inline F32 HighOfPairs(__m512i pairs) { return Lanes::Odd(reinterpret_cast<Lanes::U32>(pairs)); }

// The tile-load intrinsics do not say that they read memory: what was stored before must stay before.
inline void OrderStoresBeforeTileLoads() { asm volatile("" ::: "memory"); }

// A stream kernel of Stream<head_dim>, a constant where it is a usual one: Stream<0> takes any.
template <template <int32_t> class Stream>
void RunStream(const TileTask& task, const TileStates& states, std::byte* scratch) {
  switch (task.head_dim) {
    case 64: return Stream<64>::Run(task, states, scratch);
    case 128: return Stream<128>::Run(task, states, scratch);
    default: return Stream<0>::Run(task, states, scratch);
  }
}
template <template <int32_t> class Stream>
TileKernel StreamKernel(const char* name) {
  return {name, 1, 32, Stream<0>::ScratchBytes, RunStream<Stream>};
}

}  // namespace
}  // namespace coppice::attention::cpu
