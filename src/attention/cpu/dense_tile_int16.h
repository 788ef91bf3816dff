// Products of dense tiles over bf16 as sums of 16-bit integers, where there is no instruction for pairs of bf16: VPMADDWD
// multiplies twice as many elements as FMA. A row of Q, a token's K, a token's V and a row's weights over a tile are scaled so that
// no sum passes 31 bits whatever they hold:
//
//   q k   |q| <= kQueryNorm and |k[e]| <= 2^31 / (kQueryNorm sqrt(n)), so over n dims |q k| <= |q| |k| < 2^31 (Cauchy-Schwarz);
//         n is kBlockDims at most, whose sums are added as floats
//   P V   |v[e]| < 2^15, P <= 2^15 - 1, sum of P over a tile <= kWeightSum, and kWeightSum 2^15 < 2^31
//
// The cost of rounding: docs/numerics.md, "Attention in integers". Include it inside a region compiled for AVX2, AVX-VNNI or
// AVX-512 with VNNI; without VNNI AVX-512 gains nothing by it.
// Layer: attention/cpu.
#pragma once

#include <cmath>
#include <limits>

#include "attention/cpu/tile_simd.h"

namespace coppice::attention::cpu {
namespace {

// kVnni: with AVX-VNNI or AVX-512 VNNI, of the same bits.
template <class SimdType, bool kVnni = false>
class Int16Products {
 public:
  using Simd = SimdType;
  using V = typename Simd::V;
  using I32 = typename Simd::I32;
  static constexpr int32_t W = Simd::kLanes;
  static_assert(W == 8 || (W == 16 && kVnni));
  // AVX2: 8 sums, 2 vectors of rows, an element and a product: sums of integers wait for nothing. With VNNI there is no product,
  // and 12 sums cover the latency.
  static constexpr int kMostGroups = kVnni ? 3 : 2;
  static constexpr int32_t kKvElementBytes = sizeof(BF16);
  static int32_t Dims(int32_t d) { return (d + kChunk - 1) / kChunk * kChunk; }
  // Each chunk's even dims come before its odd ones.
  static int32_t PlaceOf(int32_t dim) { return dim / kChunk * kChunk + dim % 2 * W + dim % kChunk / 2; }
  static size_t ScratchBytes(int32_t d, size_t groups) {
    const size_t dims = Dims(d);
    return Carver::Bytes<int32_t>(groups * dims / 2 * W) + Carver::Bytes<float>(groups * W) +
           Carver::Bytes<int16_t>(kTileTokens * dims) + Carver::Bytes<int32_t>(kTilePairs * dims) +
           2 * Carver::Bytes<float>(kTileTokens) + Carver::Bytes<int32_t>(kMostGroups * kTilePairs * W) +
           Carver::Bytes<float>(kMostGroups * W) + Carver::Bytes<BF16>(dims);
  }

  // Rows -> [group][pair of dims][row in group].
  Int16Products(const TileTask& task, int32_t groups, Carver& carver)
      : task_(task),
        d_(task.head_dim),
        dims_(Dims(d_)),
        most_k_(0x1p31f / (1.001f * kQueryNorm * std::sqrt(float(std::min(dims_, kBlockDims))))) {
    q_ = carver.Take<int32_t>(size_t(groups) * dims_ / 2 * W);
    q_unit_ = carver.Take<float>(groups * W);
    k_ = carver.Take<int16_t>(size_t(kTileTokens) * dims_);
    v_ = carver.Take<int32_t>(size_t(kTilePairs) * dims_);
    k_unit_ = carver.Take<float>(kTileTokens);
    v_unit_ = carver.Take<float>(kTileTokens);
    p_ = carver.Take<int32_t>(kMostGroups * kTilePairs * W);
    p_unit_ = carver.Take<float>(kMostGroups * W);
    zeros_ = carver.Take<BF16>(dims_);
    std::fill_n(zeros_, dims_, BF16{});
    auto* elements = reinterpret_cast<float*>(v_);  // free until the first tile
    auto* const q = reinterpret_cast<int16_t*>(q_);
    for (int32_t row = 0; row < groups * W; ++row) {
      std::fill_n(elements, dims_, 0.0f);
      if (row < task.num_rows()) WidenRow<Simd>(QueryRow<BF16>(task, row), d_, elements);
      const float unit = UnitOfNorm(elements);
      q_unit_[row] = task.soft_cap == 0 ? unit * task.score_scale : unit;
      const float scale = Inverse(unit);
      int16_t* to = q + (int64_t{row / W} * dims_ / 2 * W + row % W) * 2;
      for (int32_t e = 0; e < dims_; e += W) {
        const I32 integers = Round(Simd::Load(elements + e) * scale);
#pragma GCC unroll 8
        for (int i = 0; i < W; i += 2, to += 2 * W) {
          to[0] = static_cast<int16_t>(integers[i]);
          to[1] = static_cast<int16_t>(integers[i + 1]);
        }
      }
    }
  }

  // K as [token][dim], V as [pair of tokens][place]. Places outside the task's range become 0.
  void LoadKv(int32_t tile) { d_ % kChunk == 0 ? LoadRows<false>(tile) : LoadRows<true>(tile); }

  // As FloatProducts::Score.
  template <int kGroups>
  void Score(int32_t g, int32_t first, int32_t last, float* s, float* maximum) const {
    const int64_t group_stride = int64_t{dims_} / 2 * W;
    const bool capped = task_.soft_cap != 0;
    alignas(64) float unfinished[kGroups][W] = {};  // maxima without a use
    for (int32_t t = first; t < last; t += kSums<kGroups>) {
      for (int32_t e = 0; e < dims_; e += kBlockDims) {
        const int32_t count = std::min(kBlockDims, dims_ - e);
        const auto score = e == 0 ? ScoreTokens<kGroups, false> : ScoreTokens<kGroups, true>;
        score(q_ + g * group_stride + e / 2 * W, group_stride, k_ + t * dims_ + e, dims_, count, q_unit_ + g * W, k_unit_ + t,
              s + t * W, capped || e + count < dims_ ? unfinished[0] : maximum);
      }
      for (int n = 0; n < kGroups && capped; ++n) {
        FinishScores<Simd, kSums<kGroups>>(task_, s + (n * kTileTokens + t) * W, maximum + n * W);
      }
    }
  }

  // 2^x of a score less its row's reference, for weights that are rounded to 15 bits: minimax of degree 4 in relative
  // error, 2.6e-6. -inf gives 2^-126, which rounds to 0.
  template <bool kMasked, int kCount>
  [[gnu::always_inline]] static void Exp2(V (&x)[kCount]) {
    V shifted[kCount], p[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const V seen = x[i];
      x[i] = Simd::Max(x[i], Simd::Set1(kExp2Underflow));
      shifted[i] = x[i] + 0x1.8p23f;
      x[i] = x[i] - (shifted[i] - 0x1.8p23f);
      p[i] = Simd::Set1(0.009570101910525389f);
#pragma GCC unroll 4
      for (const float c : {0.05591786031945108f, 0.2402474482788128f, 0.6931218147366894f, 0.9999992614457113f}) {
        p[i] = Simd::Fma(p[i], x[i], Simd::Set1(c));
      }
      x[i] = reinterpret_cast<V>(reinterpret_cast<I32>(p[i]) + (reinterpret_cast<I32>(shifted[i]) << 23));
      if constexpr (kMasked) x[i] = seen < kExp2Underflow ? V{} : x[i];
    }
  }

  // A group's weights, times what an integer of each token's V stands for: in the place of its scores, then as integers of one unit
  // a row.
  struct Weights {
    Weights(Int16Products& products, float* s) : products(products), s(s) {}
    [[gnu::always_inline]] void Put(int32_t t, V p) {
      const V w = p * products.v_unit_[t];
      Simd::Store(s + t * W, w);
      largest = Simd::Max(w, largest);
      sum = sum + w;
    }
    void End(int n, int32_t first, int32_t last) {
      // Max takes its second operand where one is NaN, here the sum.
      const V one = Simd::Max(largest * (1 / kMostInt16), sum * (1 / kWeightSum));
      Simd::Store(products.p_unit_ + n * W, one);
      const V scale = one > kLeast ? 1.0f / one : V{};
      int32_t* const to = products.p_ + n * kTilePairs * W;
      for (int32_t t = first; t < last; t += 2) {
        Simd::StoreAs(to + t / 2 * W, Pairs(Round(Simd::Load(s + t * W) * scale), Round(Simd::Load(s + (t + 1) * W) * scale)));
      }
    }
    Int16Products& products;
    float* s;
    V largest = {}, sum = {};
  };

  // acc[group][place] += P V.
  template <int kGroups>
  void Accumulate(const float*, int32_t first, int32_t last, float* acc, int64_t group_stride) const {
    for (int32_t e = 0; e < dims_; e += kSums<kGroups>) {
      AccumulatePairs<kGroups>(p_ + first / 2 * W, v_ + first / 2 * dims_ + e, dims_, (last - first) / 2, p_unit_, acc + e * W,
                               group_stride);
    }
  }

 private:
  static constexpr int32_t kChunk = 2 * W, kTilePairs = kTileTokens / 2;
  // Tokens, then dims, whose sums with kGroups groups are in registers together.
  template <int kGroups>
  static constexpr int kSums = kGroups == 1 ? 8 : 4;
  // The errors of q and k are alike then, if k's largest element is some 3.5 times the root of its mean square.
  static constexpr float kQueryNorm = 28000;
  static constexpr int32_t kBlockDims = 64;
  static constexpr float kMostInt16 = 32767, kWeightSum = 65000;
  static_assert((kWeightSum + kTileTokens) * 32768.0 < 0x1p31);
  using U32 = typename Simd::U32;
  using I16 = typename Simd::I16;

  // Values for each integer; NaN where something is not finite, as what is computed of it shall be.
  float UnitOfNorm(const float* elements) const {
    V largest = {}, sum = {};
    for (int32_t e = 0; e < dims_; e += W) largest = Simd::Max(largest, Magnitude(Simd::Load(elements + e)));
    const float most = Simd::MaxOf(largest), inverse = most > kLeast && most <= std::numeric_limits<float>::max() ? 1 / most : 0.0f;
    for (int32_t e = 0; e < dims_; e += W) {
      const V x = Simd::Load(elements + e);
      sum = Simd::Fma(x * inverse, x * inverse, sum);  // NaN where an element is not finite
    }
    const float squares = Simd::SumOf(sum);
    return std::isnan(squares) ? kNaN : std::sqrt(squares) * (most * (1 / kQueryNorm));
  }
  [[gnu::always_inline]] static V Magnitude(V x) { return reinterpret_cast<V>(reinterpret_cast<U32>(x) & 0x7fffffffu); }
  // Integers for each value.
  static float Inverse(float unit) { return unit > kLeast ? 1 / unit : 0.0f; }
  static constexpr float kLeast = 1e-37f;  // below which an inverse would overflow: as good as 0
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

  // A chunk of a row; kTail: with zeros behind its end.
  template <bool kTail>
  [[gnu::always_inline]] static U32 Chunk(const BF16* row, int32_t e, int32_t d) {
    if (!kTail || e + kChunk <= d) return Simd::template LoadAs<U32>(row + e);
    if constexpr (W == 16) {
      return reinterpret_cast<U32>(_mm512_maskz_loadu_epi16((__mmask32{1} << (d - e)) - 1, row + e));
    } else {
      return reinterpret_cast<U32>(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + e))));
    }
  }
  // So that the row's largest element becomes `most`.
  template <bool kTail>
  [[gnu::always_inline]] static float UnitOfRow(const BF16* row, int32_t d, float inverse_most) {
    I16 largest_of_lane = {};
    for (int32_t e = 0; e < d; e += kChunk) {
      const I16 magnitudes = reinterpret_cast<I16>(Chunk<kTail>(row, e, d) & 0x7fff7fffu);
      largest_of_lane = largest_of_lane > magnitudes ? largest_of_lane : magnitudes;
    }
    __m256i largest;
    if constexpr (W == 16) {
      const __m512i all = reinterpret_cast<__m512i>(largest_of_lane);
      largest = _mm256_max_epi16(_mm512_castsi512_si256(all), _mm512_maskz_extracti64x4_epi64(0xff, all, 1));
    } else {
      largest = reinterpret_cast<__m256i>(largest_of_lane);
    }
    const __m128i half = _mm_max_epi16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    const uint32_t bits = 0xffffu ^ static_cast<uint32_t>(_mm_extract_epi16(least, 0));
    if (bits >= 0x7f80u) return kNaN;
    return std::bit_cast<float>(bits << 16) * inverse_most;
  }
  [[gnu::always_inline]] static I32 Round(V x) {
    if constexpr (W == 16) return reinterpret_cast<I32>(_mm512_maskz_cvtps_epi32(0xffff, x));
    if constexpr (W == 8) return reinterpret_cast<I32>(_mm256_cvtps_epi32(x));
  }
  // Pairs of 16 bits, `low` before `high`.
  [[gnu::always_inline]] static I32 Pairs(I32 low, I32 high) {
    const I32 shifted = high << 16;
    if constexpr (W == 16) {
      return reinterpret_cast<I32>(
          _mm512_mask_mov_epi16(reinterpret_cast<__m512i>(low), 0xaaaaaaaa, reinterpret_cast<__m512i>(shifted)));
    } else {
      return reinterpret_cast<I32>(_mm256_blend_epi16(reinterpret_cast<__m256i>(low), reinterpret_cast<__m256i>(shifted), 0xaa));
    }
  }
  [[gnu::always_inline]] static U32 Broadcast(const void* pair) {
    uint32_t bits;
    std::memcpy(&bits, pair, sizeof(bits));
    return U32{} + bits;
  }

  template <bool kTail>
  void LoadRows(int32_t tile) {
    const BF16 *k_rows[kTileTokens], *v_rows[kTileTokens];
    std::fill_n(k_rows, kTileTokens, zeros_);
    std::fill_n(v_rows, kTileTokens, zeros_);
    PageWalk(task_.kv, std::max(tile, task_.kv_begin))
        .ForEachRow(std::min(tile + kTileTokens, task_.kv_end), [&](int32_t index, const std::byte* k, const std::byte* v) {
          k_rows[index - tile] = reinterpret_cast<const BF16*>(k);
          v_rows[index - tile] = reinterpret_cast<const BF16*>(v);
        });
    const int32_t d = d_, dims = dims_;
    const float inverse_most_k = 1 / most_k_;
    for (int32_t t = 0; t < kTileTokens; ++t) {
      const float unit = UnitOfRow<kTail>(k_rows[t], d, inverse_most_k), scale = Inverse(unit);
      k_unit_[t] = unit;
      for (int32_t e = 0; e < dims; e += kChunk) {
        const U32 x = Chunk<kTail>(k_rows[t], e, d);
        Simd::StoreAs(k_ + t * dims + e, Pairs(Round(Simd::Even(x) * scale), Round(Simd::Odd(x) * scale)));
      }
    }
    for (int32_t t = 0; t < kTileTokens; t += 2) {
      const BF16 *first = v_rows[t], *second = v_rows[t + 1];
      const float low_unit = UnitOfRow<kTail>(first, d, 1 / kMostInt16), high_unit = UnitOfRow<kTail>(second, d, 1 / kMostInt16);
      const float low = Inverse(low_unit), high = Inverse(high_unit);
      v_unit_[t] = low_unit, v_unit_[t + 1] = high_unit;
      int32_t* const to = v_ + t / 2 * dims;
      for (int32_t e = 0; e < dims; e += kChunk) {
        const U32 a = Chunk<kTail>(first, e, d), b = Chunk<kTail>(second, e, d);
        Simd::StoreAs(to + e, Pairs(Round(Simd::Even(a) * low), Round(Simd::Even(b) * high)));
        Simd::StoreAs(to + e + W, Pairs(Round(Simd::Odd(a) * low), Round(Simd::Odd(b) * high)));
      }
    }
  }

  // Functions of their own, as in FloatProducts. s = or += the products of `dims` dims.
  template <int kGroups, bool kAdd>
  [[gnu::noinline]] static void ScoreTokens(const int32_t* q, int64_t group_stride, const int16_t* k, int32_t token_stride,
                                            int32_t dims, const float* q_unit, const float* k_unit, float* s, float* maximum) {
    constexpr int kTokens = kSums<kGroups>;
    I32 sum[kTokens][kGroups] = {};
#pragma GCC unroll 2
    for (int32_t e = 0; e < dims; e += 2, q += W) {
      U32 x[kGroups];
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) x[n] = Simd::template LoadAs<U32>(q + n * group_stride);
#pragma GCC unroll 8
      for (int i = 0; i < kTokens; ++i) {
        const U32 pair = Broadcast(k + i * token_stride + e);
#pragma GCC unroll 4
        for (int n = 0; n < kGroups; ++n) sum[i][n] = Simd::template AddPairs<kVnni>(sum[i][n], pair, x[n]);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < kGroups; ++n) {
      V largest = Simd::Load(maximum + n * W);
      const V unit = Simd::Load(q_unit + n * W);
#pragma GCC unroll 8
      for (int i = 0; i < kTokens; ++i) {
        float* const at = s + (n * kTileTokens + i) * W;
        V x = __builtin_convertvector(sum[i][n], V) * (unit * k_unit[i]);
        if constexpr (kAdd) x = x + Simd::Load(at);
        Simd::Store(at, x);
        largest = Simd::Max(largest, x);
      }
      Simd::Store(maximum + n * W, largest);
    }
  }

  template <int kGroups>
  [[gnu::noinline]] static void AccumulatePairs(const int32_t* p, const int32_t* v, int32_t pair_stride, int32_t pairs,
                                                const float* unit, float* acc, int64_t group_stride) {
    constexpr int kDimsAtOnce = kSums<kGroups>;
    I32 sum[kDimsAtOnce][kGroups] = {};
#pragma GCC unroll 2
    for (int32_t t = 0; t < pairs; ++t, p += W, v += pair_stride) {
      U32 x[kGroups];
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) x[n] = Simd::template LoadAs<U32>(p + n * kTilePairs * W);
#pragma GCC unroll 8
      for (int i = 0; i < kDimsAtOnce; ++i) {
        const U32 pair = Broadcast(v + i);
#pragma GCC unroll 4
        for (int n = 0; n < kGroups; ++n) sum[i][n] = Simd::template AddPairs<kVnni>(sum[i][n], pair, x[n]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kDimsAtOnce; ++i) {
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) {
        float* at = acc + n * group_stride + i * W;
        Simd::Store(at, Simd::Fma(__builtin_convertvector(sum[i][n], V), Simd::Load(unit + n * W), Simd::Load(at)));
      }
    }
  }

  const TileTask& task_;
  int32_t d_, dims_;
  float most_k_;             // of K's integers
  int32_t* q_;               // [group][dims / 2][W]: pairs of dims
  float* q_unit_;            // [group][W]: the score of a product of one (or q k, with a soft cap) for a unit of K of 1
  int16_t* k_;               // [kTileTokens][dims]
  int32_t* v_;               // [kTilePairs][dims]: pairs of tokens
  float *k_unit_, *v_unit_;  // [kTileTokens]
  int32_t* p_;               // [kMostGroups][kTilePairs][W]: pairs of tokens
  float* p_unit_;            // [kMostGroups][W]
  BF16* zeros_;              // [dims]: the row of a token outside the task's range
};

// Dense tiles of this kind in place of those of `kernels` where queries and cache are bf16. Over 2,048 tokens stream tiles take 0.9
// of its time for 12 rows, 1.2 of it for 16, and as long for 18; with AVX-512 1.0 for 12, 1.4 for 16.
template <class Products>
void UseIntegers(const char* name, DType q_dtype, DType kv_dtype, TileKernels& kernels) {
  if (q_dtype != DType::kBF16 || kv_dtype != DType::kBF16) return;
  using Dense = DenseTile<Products>;
  kernels.dense = {name, Products::W, 8, Dense::ScratchBytes, Dense::Run};
  kernels.dense_row_unit = Products::kMostGroups * Products::W;
  kernels.dense_min_rows = 13;
}

}  // namespace
}  // namespace coppice::attention::cpu
