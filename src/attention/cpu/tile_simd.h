// Dense and stream tiles in fp32 arithmetic for every dtype, written once over a Simd type (tile_vectors.h). Include it inside
// a region compiled for that instruction set.
//
//   dense   query rows in the lanes: each element of K and V is broadcast to a vector of rows, nothing is summed across lanes
//   stream  dims in the lanes: K and V go straight from the pages into registers, each once for up to eight rows
//
// Layer: attention/cpu. Milakov & Gimelshein 2018 (online softmax); the equations are in softmax_state.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cpu/lane_ranges.h"
#include "attention/cpu/page_walk.h"
#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_kernel.h"
#include "core/cache_line.h"

namespace coppice::attention::cpu {
namespace {

constexpr int32_t kTileTokens = kKvTile;

// Carves scratch memory into 64-byte aligned arrays.
class Carver {
 public:
  explicit Carver(std::byte* base) : next_(base) {}
  template <class T>
  T* Take(size_t count) {
    T* p = reinterpret_cast<T*>(next_);
    next_ += Bytes<T>(count);
    return p;
  }
  template <class T>
  static constexpr size_t Bytes(size_t count) {
    return (count * sizeof(T) + 63) / 64 * 64;
  }

 private:
  std::byte* next_;
};

// One row of `d` elements widened to fp32.
template <class Simd, class T>
inline void WidenRow(const T* from, int32_t d, float* to) {
  int32_t e = 0;
  for (; e + Simd::kLanes <= d; e += Simd::kLanes) Simd::Store(to + e, Simd::Widen(from + e));
  if (e < d) Simd::StoreHalf(to + e, Simd::WidenHalf(from + e));
}

template <class T>
const T* QueryRow(const TileTask& task, int32_t row) {
  return reinterpret_cast<const T*>(task.q + task.queries[row / task.group_size].q_row * task.q_row_bytes) +
         static_cast<int64_t>(row % task.group_size) * task.head_dim;
}

// ---------------------------------------------------------------------------------------------------------------- dense tiles

// A dense tile: rows in the lanes, in groups of kLanes. Products (FloatProducts; dense_tile_int16.h has another) holds Q and a tile
// of K and V in its form, multiplies, and knows how many groups share an element of K or V that is in a register.
template <class Products>
class DenseTile {
  using Simd = typename Products::Simd;
  static constexpr int32_t W = Simd::kLanes;
  static constexpr int kBlock = 8;  // tokens of a tile are taken in multiples of this
  static constexpr int kMostGroups = Products::kMostGroups;
  using V = typename Simd::V;
  using Ranges = LaneRanges<Simd>;

 public:
  static size_t ScratchBytes(int32_t d, int32_t max_rows) {
    const size_t groups = (max_rows + W - 1) / W;
    return Products::ScratchBytes(d, groups) + Carver::Bytes<float>(groups * Products::Dims(d) * W) +
           2 * Carver::Bytes<float>(groups * W) + Carver::Bytes<float>(kMostGroups * kTileTokens * W) +
           Carver::Bytes<Ranges>(groups);
  }

  static void Run(const TileTask& task, const TileStates& states, std::byte* scratch) {
    DenseTile tile(task, scratch);
    for (int32_t g = 0; g < tile.groups_; ++g) tile.ranges_[g].Set(task, g * W);
    for (int32_t begin = task.kv_begin / kTileTokens * kTileTokens; begin < task.kv_end; begin += kTileTokens) {
      tile.products_.LoadKv(begin);
      tile.fetched_ = 0;
      tile.template Steps<kMostGroups>(0, begin);
    }
    tile.StoreStates(states);
  }

 private:
  DenseTile(const TileTask& task, std::byte* scratch)
      : task_(task), groups_((task.num_rows() + W - 1) / W), carver_(scratch), products_(task, groups_, carver_) {
    acc_ = carver_.Take<float>(groups_ * acc_stride());
    m_ = carver_.Take<float>(groups_ * W);
    l_ = carver_.Take<float>(groups_ * W);
    s_ = carver_.Take<float>(kMostGroups * kTileTokens * W);
    ranges_ = carver_.Take<Ranges>(groups_);
    std::fill_n(acc_, groups_ * acc_stride(), 0.0f);
    std::fill_n(m_, groups_ * W, kNegInf);
    std::fill_n(l_, groups_ * W, 0.0f);
  }

  int64_t acc_stride() const { return int64_t{Products::Dims(task_.head_dim)} * W; }  // of a group

  // One tile for the groups from g on, kGroups at a time and then fewer.
  template <int kGroups>
  void Steps(int32_t g, int32_t tile) {
    for (; g + kGroups <= groups_; g += kGroups) {
      FetchNext(tile, g + kGroups);
      Step<kGroups>(g, tile);
    }
    if constexpr (kGroups > 1) Steps<kGroups - 1>(g, tile);
  }

  // Asks for the next tile's K and V, as much as groups [0, done) are of all: it comes from memory while they are computed.
  void FetchNext(int32_t tile, int32_t done) {
    const int32_t begin = std::max(tile + kTileTokens, task_.kv_begin) + fetched_;
    const int32_t end = std::min(tile + kTileTokens + kTileTokens * done / groups_, task_.kv_end);
    if (begin >= end) return;
    const int32_t bytes = task_.head_dim * Products::kKvElementBytes;
    PageWalk(task_.kv, begin).ForEachRow(end, [&](int32_t, const std::byte* k, const std::byte* v) {
      for (int32_t byte = 0; byte < bytes; byte += kCacheLine) {
        __builtin_prefetch(k + byte, /*write=*/0, kSecondLevel);
        __builtin_prefetch(v + byte, /*write=*/0, kSecondLevel);
      }
    });
    fetched_ += end - begin;
  }

  // Score, softmax, accumulate. Tokens are cut at absolute multiples of kBlock; those that one group sees and another does not
  // weigh nothing in the other.
  template <int kGroups>
  void Step(int32_t g, int32_t tile) {
    int32_t first = kTileTokens, last = 0;
    for (int i = 0; i < kGroups; ++i) {
      const Ranges& range = ranges_[g + i];
      if (range.first >= range.last) continue;
      first = std::min(first, std::max(range.first - tile, 0) / kBlock * kBlock);
      last = std::max(last, std::min((range.last - tile + kBlock - 1) / kBlock * kBlock, kTileTokens));
    }
    if (first >= last) return;
    alignas(64) float maximum[kGroups][W];
    for (int i = 0; i < kGroups; ++i) Simd::Store(maximum[i], Simd::Set1(kNegInf));
    products_.template Score<kGroups>(g, first, last, s_, maximum[0]);
    for (int i = 0; i < kGroups; ++i) {
      float* s = s_ + i * kTileTokens * W;
      if (ranges_[g + i].SeeAll(tile + first, tile + last)) {
        Softmax<false>(g + i, i, s, Simd::Load(maximum[i]), first, last);
      } else {
        Softmax<true>(g + i, i, s, Mask(ranges_[g + i], s, tile, first, last), first, last);
      }
    }
    products_.template Accumulate<kGroups>(s_, first, last, acc_ + g * acc_stride(), acc_stride());
  }

  // Scores of what a lane does not see become -inf. Returns the maximum of the others.
  static V Mask(const Ranges& range, float* s, int32_t tile, int32_t first, int32_t last) {
    V maximum = Simd::Set1(kNegInf);
    for (int32_t t = first; t < last; ++t) {
      const V x = Simd::KeepLanes(Simd::Load(s + t * W), range.See(tile + t));
      Simd::Store(s + t * W, x);
      maximum = Simd::Max(maximum, x);
    }
    return maximum;
  }

  // Online softmax of group g, the n-th of those that are computed together, over the tile's tokens [first, last), of which
  // `tile_max` is the maximum. P, as Products::Accumulate needs it, takes the scores' place.
  template <bool kMasked>
  void Softmax(int32_t g, int n, float* s, V tile_max, int32_t first, int32_t last) {
    float *m = m_ + g * W, *l = l_ + g * W;
    const V old_m = Simd::Load(m), new_m = Simd::Max(old_m, tile_max), reference = Simd::SafeMax(new_m);
    V sum = Simd::Load(l);
    if (Simd::AnyGreater(new_m, old_m)) {
      const V rescale = Simd::Exp2(old_m - reference);
      sum = sum * rescale;
      const int64_t size = acc_stride();
      float* acc = acc_ + g * size;
      for (int64_t i = 0; i < size; i += W) Simd::Store(acc + i, Simd::Load(acc + i) * rescale);
      Simd::Store(m, new_m);
    }
    constexpr int kAtOnce = 4;
    static_assert(kBlock % kAtOnce == 0);
    typename Products::Weights weights(products_, s);
    for (int32_t t = first; t < last; t += kAtOnce) {
      V p[kAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) p[i] = Simd::Load(s + (t + i) * W) - reference;
      Products::template Exp2<kMasked>(p);
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) {
        weights.Put(t + i, p[i]);
        sum = sum + p[i];
      }
    }
    Simd::Store(l, sum);
    weights.End(n, first, last);
  }

  void StoreStates(const TileStates& states) const {
    std::copy_n(m_, task_.num_rows(), states.m);
    std::copy_n(l_, task_.num_rows(), states.l);
    for (int32_t row = 0; row < task_.num_rows(); ++row) {
      const float* acc = acc_ + row / W * acc_stride() + row % W;
      float* to = states.acc + row * states.acc_stride;
      for (int32_t e = 0; e < task_.head_dim; ++e) to[e] = acc[Products::PlaceOf(e) * W];
    }
  }

  const TileTask& task_;
  int32_t groups_;
  Carver carver_;
  Products products_;
  int32_t fetched_ = 0;   // tokens of the next tile that were asked for
  float *acc_, *m_, *l_;  // [group][Products::Dims][W], [group][W] twice
  float* s_;              // [kMostGroups][kTileTokens][W]: scores, then P
  Ranges* ranges_;        // [group]
};

// Base-2 scores of a sum of products, and of kCount such vectors in their place; `maximum` is kept.
template <class Simd, int kCount>
void FinishScores(const TileTask& task, float* s, float* maximum) {
  using V = typename Simd::V;
  V largest = Simd::Load(maximum);
  const auto finish = [&](auto score) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const V x = score(Simd::Load(s + i * Simd::kLanes));
      Simd::Store(s + i * Simd::kLanes, x);
      largest = Simd::Max(largest, x);
    }
  };
  if (task.soft_cap == 0) {
    const V scale = Simd::Set1(task.score_scale);
    finish([&](V x) { return x * scale; });
  } else {
    finish([&](V x) { return ScaleScores<Simd>(task, x); });
  }
  Simd::Store(maximum, largest);
}

// Products in fp32.
template <class SimdType, class Q, class Kv>
class FloatProducts {
 public:
  using Simd = SimdType;
  using V = typename Simd::V;
  static constexpr int32_t W = Simd::kLanes;
  static constexpr int kMostGroups = Simd::kDenseGroups;  // that share an element of K or V once it is in a register
  static constexpr int32_t kKvElementBytes = sizeof(Kv);
  static int32_t Dims(int32_t d) { return d; }
  static int32_t PlaceOf(int32_t dim) { return dim; }  // in a row of the output
  static size_t ScratchBytes(int32_t d, size_t groups) {
    return Carver::Bytes<float>(groups * d * W) + 2 * Carver::Bytes<float>(size_t{kTileTokens} * d);
  }

  // Rows -> [group][dim][row in group].
  FloatProducts(const TileTask& task, int32_t groups, Carver& carver) : task_(task), d_(task.head_dim) {
    q_ = carver.Take<float>(size_t(groups) * d_ * W);
    k_ = carver.Take<float>(size_t{kTileTokens} * d_);
    v_ = carver.Take<float>(size_t{kTileTokens} * d_);
    float* row_elements = k_;  // free until the first tile
    for (int32_t row = 0; row < groups * W; ++row) {
      float* to = q_ + int64_t{row / W} * d_ * W + row % W;
      if (row < task.num_rows()) {
        WidenRow<Simd>(QueryRow<Q>(task, row), d_, row_elements);
      } else {
        std::fill_n(row_elements, d_, 0.0f);
      }
      for (int32_t e = 0; e < d_; ++e) to[e * W] = row_elements[e];
    }
  }

  // K and V of the tile in fp32, all groups use them from L1 / L2. Places outside the task's range become 0.
  void LoadKv(int32_t tile) {
    const int32_t begin = std::max(tile, task_.kv_begin), end = std::min(tile + kTileTokens, task_.kv_end);
    std::fill_n(k_, int64_t{begin - tile} * d_, 0.0f);
    std::fill_n(v_, int64_t{begin - tile} * d_, 0.0f);
    PageWalk(task_.kv, begin).ForEachRow(end, [&](int32_t index, const std::byte* k, const std::byte* v) {
      WidenRow<Simd>(reinterpret_cast<const Kv*>(k), d_, k_ + (index - tile) * d_);
      WidenRow<Simd>(reinterpret_cast<const Kv*>(v), d_, v_ + (index - tile) * d_);
    });
    std::fill_n(k_ + (end - tile) * d_, int64_t{tile + kTileTokens - end} * d_, 0.0f);
    std::fill_n(v_ + (end - tile) * d_, int64_t{tile + kTileTokens - end} * d_, 0.0f);
  }

  // Base-2 scores of the tokens [first, last), s [kGroups][kTileTokens][W]; `maximum` [kGroups][W] is kept.
  template <int kGroups>
  void Score(int32_t g, int32_t first, int32_t last, float* s, float* maximum) const {
    for (int32_t t = first; t < last; t += kSums<kGroups>) ScoreTokens<kGroups>(g, t, s + t * W, maximum);
  }

  // 2^x of a score less its row's reference; kMasked: it may be -inf.
  template <bool kMasked, int kCount>
  [[gnu::always_inline]] static void Exp2(V (&x)[kCount]) {
    if constexpr (kMasked) {
      for (V& element : x) element = Simd::Exp2(element);
    } else {
      Simd::Exp2Seen(x);
    }
  }

  // A group's P, in the place of its scores s [kTileTokens][W].
  struct Weights {
    Weights(const FloatProducts&, float* s) : s(s) {}
    [[gnu::always_inline]] void Put(int32_t t, V p) { Simd::Store(s + t * W, p); }
    void End(int, int32_t, int32_t) {}
    float* s;
  };

  // acc[group][dim] += P V.
  template <int kGroups>
  void Accumulate(const float* p, int32_t first, int32_t last, float* acc, int64_t group_stride) const {
    for (int32_t e = 0; e < d_; e += kSums<kGroups>) {
      AccumulateTokens<kGroups>(p + first * W, v_ + first * d_ + e, d_, last - first, acc + e * W, group_stride);
    }
  }

 private:
  // Tokens, then dims, whose sums with kGroups groups are in registers together: they cover the latency of FMA.
  template <int kGroups>
  static constexpr int kSums = kGroups == 1 ? 8 : 4;

  template <int kGroups>
  void ScoreTokens(int32_t g, int32_t t, float* s, float* maximum) const {
    constexpr int32_t kTokens = kSums<kGroups>;
    // Sums of 32 dims at a time: one chain of all dims would round more than the stream tile's sums in 8 or 16 lanes do.
    constexpr int32_t kDims = 32;
    const int64_t group_stride = int64_t{d_} * W;
    const float *q = q_ + g * group_stride, *k = k_ + t * d_;
    ScoreDims<kGroups, false>(q, group_stride, k, d_, std::min(kDims, d_), s);
    for (int32_t e = kDims; e < d_; e += kDims) {
      ScoreDims<kGroups, true>(q + e * W, group_stride, k + e, d_, std::min(kDims, d_ - e), s);
    }
    for (int n = 0; n < kGroups; ++n) FinishScores<Simd, kTokens>(task_, s + n * kTileTokens * W, maximum + n * W);
  }

  // s[group][token] = or += the products of `dims` dims. A function of its own, like the next: sums, vectors and elements take all
  // registers of AVX2, and what else a caller holds there would push them out.
  template <int kGroups, bool kAdd>
  [[gnu::noinline]] static void ScoreDims(const float* q, int64_t group_stride, const float* k, int64_t token_stride, int32_t dims,
                                          float* s) {
    constexpr int32_t kTokens = kSums<kGroups>;
    V sum[kTokens][kGroups];
#pragma GCC unroll 8
    for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) sum[i][n] = V{};
    }
#pragma GCC unroll 2
    for (int32_t e = 0; e < dims; ++e) {
      V x[kGroups];
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) x[n] = Simd::Load(q + n * group_stride + e * W);
#pragma GCC unroll 8
      for (int i = 0; i < kTokens; ++i) {
        const V element = Simd::Set1(k[i * token_stride + e]);
#pragma GCC unroll 4
        for (int n = 0; n < kGroups; ++n) sum[i][n] = Simd::Fma(element, x[n], sum[i][n]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) {
        float* at = s + (n * kTileTokens + i) * W;
        Simd::Store(at, kAdd ? Simd::Load(at) + sum[i][n] : sum[i][n]);
      }
    }
  }

  // acc[group][dim] += P V over `tokens` tokens, for kSums dims.
  template <int kGroups>
  [[gnu::noinline]] static void AccumulateTokens(const float* p, const float* v, int64_t token_stride, int32_t tokens, float* acc,
                                                 int64_t group_stride) {
    constexpr int kDims = kSums<kGroups>;
    V sum[kDims][kGroups];
#pragma GCC unroll 8
    for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) sum[i][n] = Simd::Load(acc + n * group_stride + i * W);
    }
#pragma GCC unroll 2
    for (int32_t t = 0; t < tokens; ++t, v += token_stride) {
      V x[kGroups];
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) x[n] = Simd::Load(p + (n * kTileTokens + t) * W);
#pragma GCC unroll 8
      for (int i = 0; i < kDims; ++i) {
        const V element = Simd::Set1(v[i]);
#pragma GCC unroll 4
        for (int n = 0; n < kGroups; ++n) sum[i][n] = Simd::Fma(element, x[n], sum[i][n]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 4
      for (int n = 0; n < kGroups; ++n) Simd::Store(acc + n * group_stride + i * W, sum[i][n]);
    }
  }

  const TileTask& task_;
  int32_t d_;
  float* q_;       // [group][d][W]
  float *k_, *v_;  // [kTileTokens][d]
};

// --------------------------------------------------------------------------------------------------------------- stream tiles

template <class Simd, class Q, class Kv>
class StreamTile {
  static constexpr int32_t W = Simd::kLanes, kPair = 2 * W;
  static constexpr int32_t kRows = Simd::kStreamRows;  // rows that share one pass over a tile
  static constexpr int32_t kScores = kTileTokens + W;  // of a row; sums of tokens past the tile's end land behind it
  using V = typename Simd::V;

 public:
  static size_t ScratchBytes(int32_t d, int32_t max_rows) {
    return 2 * Carver::Bytes<float>(size_t(max_rows) * Stride(d)) + Carver::Bytes<float>(kRows * kScores) +
           4 * Carver::Bytes<const Kv*>(kTileTokens);
  }

  static void Run(const TileTask& task, const TileStates& states, std::byte* scratch) {
    StreamTile tile(task, scratch);
    const int32_t rows = task.num_rows();
    std::fill_n(tile.acc_, int64_t{rows} * tile.stride_, 0.0f);
    std::fill_n(states.m, rows, kNegInf);
    std::fill_n(states.l, rows, 0.0f);
    for (int32_t r = 0; r < rows; ++r) tile.PackQ(r);
    const int32_t first = task.kv_begin / kTileTokens * kTileTokens;
    if (first < task.kv_end) tile.Locate(first, tile.k_next_, tile.v_next_);
    for (int32_t begin = first; begin < task.kv_end; begin += kTileTokens) {
      std::swap(tile.k_, tile.k_next_);
      std::swap(tile.v_, tile.v_next_);
      tile.Locate(begin + kTileTokens, tile.k_next_, tile.v_next_);
      int32_t r = 0;
      if constexpr (kRows >= 8) {
        for (; r + 8 <= rows; r += 8) tile.template Step<8>(states, r, begin);
      }
      for (; r + 4 <= rows; r += 4) tile.template Step<4>(states, r, begin);
      if (r + 2 <= rows) tile.template Step<2>(states, r, begin), r += 2;
      if (r < rows) tile.template Step<1>(states, r, begin);
    }
    for (int32_t r = 0; r < rows; ++r) tile.StoreState(r, states.acc + r * states.acc_stride);
  }

 private:
  static int32_t Stride(int32_t d) { return (d + kPair - 1) / kPair * kPair; }

  StreamTile(const TileTask& task, std::byte* scratch) : task_(task), d_(task.head_dim), stride_(Stride(d_)) {
    Carver carver(scratch);
    q_ = carver.Take<float>(int64_t{task.num_rows()} * stride_);
    acc_ = carver.Take<float>(int64_t{task.num_rows()} * stride_);
    s_ = carver.Take<float>(kRows * kScores);
    k_ = carver.Take<const Kv*>(kTileTokens);
    v_ = carver.Take<const Kv*>(kTileTokens);
    k_next_ = carver.Take<const Kv*>(kTileTokens);
    v_next_ = carver.Take<const Kv*>(kTileTokens);
  }

  // Each 2 * kLanes dims of q in the order in which WidenPair leaves those of K.
  void PackQ(int32_t row) {
    float* q = q_ + row * stride_;
    std::fill_n(q, stride_, 0.0f);
    WidenRow<Simd>(QueryRow<Q>(task_, row), d_, q);
    if constexpr (Simd::template kEvenOdd<Kv>) {
      for (int32_t e = 0; e < stride_; e += kPair) {
        const V a = Simd::Load(q + e), b = Simd::Load(q + e + W);
        Simd::Store(q + e, Simd::EvenPlaces(a, b));
        Simd::Store(q + e + W, Simd::OddPlaces(a, b));
      }
    }
  }

  void StoreState(int32_t row, float* to) {
    float* acc = acc_ + row * stride_;
    if constexpr (Simd::template kEvenOdd<Kv>) {
      for (int32_t e = 0; e < stride_; e += kPair) {
        const V even = Simd::Load(acc + e), odd = Simd::Load(acc + e + W);
        Simd::Store(acc + e, Simd::ZipLow(even, odd));
        Simd::Store(acc + e + W, Simd::ZipHigh(even, odd));
      }
    }
    std::copy_n(acc, d_, to);
  }

  // Where the tokens of a tile lie. Those outside the task's range are given the place of its first token: they are fetched ahead
  // like the others, but never used.
  void Locate(int32_t tile, const Kv** k_rows, const Kv** v_rows) const {
    const HeadKv& kv = task_.kv;
    std::fill_n(k_rows, kTileTokens, reinterpret_cast<const Kv*>(kv.K(task_.kv_begin)));
    std::fill_n(v_rows, kTileTokens, reinterpret_cast<const Kv*>(kv.V(task_.kv_begin)));
    const int32_t end = std::min(tile + kTileTokens, task_.kv_end);
    PageWalk(kv, std::clamp(tile, task_.kv_begin, task_.kv_end))
        .ForEachRow(end, [&](int32_t index, const std::byte* k, const std::byte* v) {
          k_rows[index - tile] = reinterpret_cast<const Kv*>(k);
          v_rows[index - tile] = reinterpret_cast<const Kv*>(v);
        });
  }

  // The i-th row of the next tile to be fetched. Hardware prefetchers stop at the end of a page, and one stream of reads reaches
  // half of the memory's rate (docs/attention.md): four pages of the usual 16 tokens take turns. One row is fetched for each one
  // used, so that the loads spread evenly.
  void Prefetch(const Kv* const* rows, int32_t i) const {
    const Kv* row = rows[i % 4 * (kTileTokens / 4) + i / 4];
    for (int32_t e = 0; e < d_; e += kCacheLine / static_cast<int32_t>(sizeof(Kv)))
      __builtin_prefetch(row + e, /*write=*/0, kSecondLevel);
  }

  // One tile for kN rows: score, softmax, accumulate.
  template <int kN>
  void Step(const TileStates& states, int32_t row, int32_t tile) {
    int32_t first = INT32_MAX, last = 0;
    for (int32_t r = row; r < row + kN; ++r) {
      const TileQuery& query = task_.queries[r / task_.group_size];
      const int32_t begin = std::max(query.begin, tile), end = std::min(query.end, tile + kTileTokens);
      if (begin < end) first = std::min(first, begin), last = std::max(last, end);
    }
    if (first >= last) return;
    constexpr int32_t kTokens = W / kN;  // their sums with kN rows fill one vector
    for (int32_t t = first - tile; t < last - tile; t += kTokens) Score<kN>(row, t, last - tile);
    bool any = false;
    for (int32_t r = 0; r < kN; ++r) any |= Softmax(states, row, r, tile, first, last);
    if (!any) return;
    constexpr int kPairs = std::clamp(Simd::kSums / (2 * kN), 1, 4);  // of vectors of dims, whose sums are in registers together
    int32_t e = 0;
    for (; e + kPairs * kPair <= d_; e += kPairs * kPair) Accumulate<kN, kPairs>(row, e, first - tile, last - tile);
    for (; e + kPair <= d_; e += kPair) Accumulate<kN, 1>(row, e, first - tile, last - tile);
    if (e < d_) Accumulate<kN, 0>(row, e, first - tile, last - tile);
  }

  // Scores of kN rows against the tokens [t, t + W / kN); tokens at or past `last` repeat the last one.
  template <int kN>
  void Score(int32_t row, int32_t t, int32_t last) {
    constexpr int32_t kTokens = W / kN;
    const Kv* k[kTokens];
    for (int32_t i = 0; i < kTokens; ++i) {
      k[i] = k_[std::min(t + i, last - 1)];
      if (row == 0) Prefetch(k_next_, std::min(t + i, kTileTokens - 1));
    }
    V sum[W];  // [row][token]
#pragma GCC unroll 16
    for (int32_t i = 0; i < W; ++i) sum[i] = V{};
    int32_t e = 0;
    for (; e + kPair <= d_; e += kPair) AddProducts<kN, false>(row, e, k, sum);
    if (e < d_) AddProducts<kN, true>(row, e, k, sum);
    alignas(64) float sums[W];
    Simd::Store(sums, ScaleScores<Simd>(task_, Simd::SumEach(sum)));
    for (int32_t r = 0; r < kN; ++r) std::copy_n(sums + r * kTokens, kTokens, s_ + r * kScores + t);
  }

  // Two vectors of dims from e on, the last ones of a head with kTail.
  template <bool kTail>
  [[gnu::always_inline]] void Load(const Kv* row, int32_t e, V& a, V& b) const {
    if constexpr (kTail) {
      Simd::WidenTail(row + e, d_ - e, a, b);
    } else {
      Simd::WidenPair(row + e, a, b);
    }
  }

  // sum[row][token] += q k over two vectors of dims.
  template <int kN, bool kTail>
  [[gnu::always_inline]] void AddProducts(int32_t row, int32_t e, const Kv* const* k, V* sum) const {
    constexpr int32_t kTokens = W / kN;
    constexpr int32_t kHeld = std::min(kTokens, 4);  // tokens that are held widened while the rows pass
    const float* q = q_ + row * stride_ + e;
#pragma GCC unroll 16
    for (int32_t i = 0; i < kTokens; i += kHeld) {
      V a[kHeld], b[kHeld];
#pragma GCC unroll 4
      for (int32_t j = 0; j < kHeld; ++j) Load<kTail>(k[i + j], e, a[j], b[j]);
#pragma GCC unroll 8
      for (int32_t r = 0; r < kN; ++r) {
        const V x = Simd::Load(q + r * stride_), y = Simd::Load(q + r * stride_ + W);
#pragma GCC unroll 4
        for (int32_t j = 0; j < kHeld; ++j) {
          V& s = sum[r * kTokens + i + j];
          s = Simd::Fma(y, b[j], Simd::Fma(x, a[j], s));
        }
      }
    }
  }

  // Online softmax of row `row + r` over the tile's tokens [first, last); s_ becomes P. False if it sees none of them.
  bool Softmax(const TileStates& states, int32_t row, int32_t r, int32_t tile, int32_t first, int32_t last) {
    const TileQuery& query = task_.queries[(row + r) / task_.group_size];
    float* s = s_ + r * kScores;
    for (int32_t index = first; index < last && !query.SeesAll(first, last); ++index) {
      if (!query.Sees(index)) s[index - tile] = kNegInf;
    }
    // Whole vectors: scores beside the range are dropped.
    const int32_t begin = (first - tile) / W * W, end = std::min((last - tile + W - 1) / W * W, kTileTokens);
    std::fill(s + begin, s + (first - tile), kNegInf);
    std::fill(s + (last - tile), s + end, kNegInf);
    V maximum = Simd::Load(s + begin);
    for (int32_t t = begin + W; t < end; t += W) maximum = Simd::Max(maximum, Simd::Load(s + t));
    float &m = states.m[row + r], &l = states.l[row + r];
    const float new_m = std::max(m, Simd::MaxOf(maximum));
    if (new_m == kNegInf) {
      std::fill(s + begin, s + end, 0.0f);
      return false;
    }
    if (new_m > m) {
      const float rescale = Rescale(m, new_m);
      float* acc = acc_ + (row + r) * stride_;
      for (int32_t e = 0; e < stride_; e += W) Simd::Store(acc + e, Simd::Load(acc + e) * rescale);
      l *= rescale;
      m = new_m;
    }
    V sum = {};
    for (int32_t t = begin; t < end; t += W) {
      const V p = Simd::Exp2(Simd::Load(s + t) - m);
      Simd::Store(s + t, p);
      sum = sum + p;
    }
    l += Simd::SumOf(sum);
    return true;
  }

  // acc[row .. + kN][e ..] += P V over the tokens [first, last): kPairs pairs of vectors of dims, or for 0 the last dims.
  template <int kN, int kPairs>
  void Accumulate(int32_t row, int32_t e, int32_t first, int32_t last) {
    constexpr int kVectors = 2 * std::max(kPairs, 1);
    V sum[kN][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kN; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) sum[r][c] = Simd::Load(acc_ + (row + r) * stride_ + e + c * W);
    }
    for (int32_t t = first; t < last; ++t) {
      if (row == 0 && e == 0) Prefetch(v_next_, t);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; c += 2) {
        V a, b;
        Load<kPairs == 0>(v_[t], e + c * W, a, b);
#pragma GCC unroll 8
        for (int r = 0; r < kN; ++r) {
          const V p = Simd::Set1(s_[r * kScores + t]);
          sum[r][c] = Simd::Fma(p, a, sum[r][c]);
          sum[r][c + 1] = Simd::Fma(p, b, sum[r][c + 1]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kN; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) Simd::Store(acc_ + (row + r) * stride_ + e + c * W, sum[r][c]);
    }
  }

  const TileTask& task_;
  int32_t d_, stride_;
  float *q_, *acc_;               // [row][stride], dims as WidenPair leaves them
  float* s_;                      // [kRows][kScores]: scores, then P
  const Kv **k_, **v_;            // [kTileTokens]: rows of this tile
  const Kv **k_next_, **v_next_;  // and of the next
};

// ---------------------------------------------------------------------------------------------------------------------- table

template <class Simd, class Q, class Kv>
TileKernels SimdKernels() {
  using Dense = DenseTile<FloatProducts<Simd, Q, Kv>>;
  return {.dense = {Simd::kDenseName, Simd::kLanes, 8, Dense::ScratchBytes, Dense::Run},
          .stream = {Simd::kStreamName, 1, 8, StreamTile<Simd, Q, Kv>::ScratchBytes, StreamTile<Simd, Q, Kv>::Run},
          .dense_min_rows = Simd::kDenseMinRows,
          .dense_row_unit = Simd::kDenseGroups > 1 ? Simd::kDenseGroups * Simd::kLanes : 0};
}
template <class Simd, class Q>
TileKernels SimdKernels(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kF32: return SimdKernels<Simd, Q, float>();
    case DType::kBF16: return SimdKernels<Simd, Q, BF16>();
    default: return SimdKernels<Simd, Q, F16>();
  }
}
template <class Simd>
TileKernels SimdKernels(DType q_dtype, DType kv_dtype) {
  switch (q_dtype) {
    case DType::kF32: return SimdKernels<Simd, float>(kv_dtype);
    case DType::kBF16: return SimdKernels<Simd, BF16>(kv_dtype);
    default: return SimdKernels<Simd, F16>(kv_dtype);
  }
}

}  // namespace
}  // namespace coppice::attention::cpu
