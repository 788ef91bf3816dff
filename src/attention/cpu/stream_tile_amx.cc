// Stream tiles in bf16 on the tile unit: up to 16 rows cost what one costs, so that memory is the bound. Against the dense tile
// (dense_tile_bf16.cc) the second product is turned round, since with few rows it is P that is cheap to transpose and V that is
// not:
//
//   S^T [tokens x rows] = K Q^T       K as it lies in the pages
//   P   [rows x tokens] = 2^(S - m)   maxima and sums run down the lanes of S^T; P^T is transposed, 16 dwords by 16
//   O   [rows x dims]  += P V         V with each two tokens interleaved, two shuffles for 64 elements
//
// Meanwhile the next 64 tokens are fetched, at an even pace and from several pages in turn (docs/attention.md says what that
// gives). Layer: attention/cpu. Milakov & Gimelshein (online softmax).
#include "attention/cpu/stream_tile_amx.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_kernel.h"
#include "core/cache_line.h"
#include "core/math.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")
#include "attention/cpu/tile_bf16.h"

namespace coppice::attention::cpu {
namespace {

// Of a KV tile: at head_dim 128 it and all operands stay in 48 KiB of L1 beside most of what is fetched.
constexpr int32_t kTokens = 32;
constexpr int32_t kBlock = kLanes, kBlocks = kTokens / kBlock;  // tokens of one tile register
constexpr int32_t kWindow = 64;                                 // tokens that are fetched together

// Fetches the rows of the window to come: one row of each block of K and of V in turn, so that eight pages of the usual 16 tokens
// are read at once (docs/attention.md says what that gives).
template <int32_t kHeadDim>
class Prefetcher {
 public:
  static constexpr uint32_t kRows = 2 * kWindow;

  explicit Prefetcher(const TileTask& task) : kv_(task.kv), kv_begin_(task.kv_begin), kv_end_(task.kv_end), d_(task.head_dim) {}

  void Begin(int32_t window) {
    if (window >= kv_end_) return;
    left_ = kRows;
    for (int32_t b = 0; b < kPlaces / 2; ++b) {
      const int32_t index = std::clamp(window + b * kBlock, kv_begin_, kv_end_ - 1);
      next_[2 * b] = kv_.K(index);
      next_[2 * b + 1] = kv_.V(index);
    }
  }
  // At most `rows` more; kRows in all after Begin.
  [[gnu::always_inline]] void Step(uint32_t rows) {
    for (uint32_t count = std::min(rows, left_); count > 0; --count) {
      const std::byte*& row = next_[left_-- % kPlaces];
      for (int32_t at = 0; at < (kHeadDim > 0 ? kHeadDim : d_) * 2; at += kCacheLine) __builtin_prefetch(row + at);
      row += kv_.slot_bytes;
    }
  }

 private:
  static constexpr int32_t kPlaces = 2 * kWindow / kBlock;

  const HeadKv& kv_;
  const int32_t kv_begin_, kv_end_, d_;
  uint32_t left_ = 0;
  const std::byte* next_[kPlaces];
};

// kHeadDim 0: any, known at run time.
template <int32_t kHeadDim>
class AmxStream {
 public:
  static size_t ScratchBytes(int32_t head_dim, int32_t max_rows) {
    const size_t d = RoundUp(head_dim, 32), groups = RoundUp(max_rows, kLanes) / kLanes;
    return groups * (d * 32 + d * 64 + 3 * 64 + RoundUp(sizeof(Ranges), size_t{64})) + 3 * kTokens * d * 2 + kTokens * (64 + 32);
  }

  static void Run(const TileTask& task, const TileStates& states, std::byte* scratch) {
    const AmxSession session;
    AmxStream self(task, scratch);
    const int32_t first = task.kv_begin / kTokens * kTokens;
    for (int32_t tile = first; tile < task.kv_end; tile += kTokens) {
      if (tile == first || tile % kWindow == 0) {
        self.prefetcher_.Step(self.prefetcher_.kRows);
        self.prefetcher_.Begin((tile / kWindow + 1) * kWindow);
      }
      self.Locate(tile);
      self.InterleaveV();
      for (int32_t g = 0; g < self.groups_; ++g) {
        if (self.ranges_[g].first < tile + kTokens && self.ranges_[g].last > tile) self.Step(g, tile);
      }
    }
    self.StoreStates(states);
  }

 private:
  struct Block {
    const std::byte *k, *v;
    int64_t stride;
  };

  AmxStream(const TileTask& task, std::byte* scratch)
      : task_(task), prefetcher_(task), groups_(RoundUp(task.num_rows(), kLanes) / kLanes), scale_(std::abs(task.score_scale)) {
    const auto take = [&](size_t bytes) {
      std::byte* p = scratch;
      scratch += RoundUp(bytes, size_t{64});
      return p;
    };
    q_ = take(size_t(groups_) * d_pad() * 32);
    acc_ = reinterpret_cast<float*>(take(size_t(groups_) * d_pad() * 64));
    m_ = reinterpret_cast<float*>(take(groups_ * 64));
    l_ = reinterpret_cast<float*>(take(groups_ * 64));
    l_rounded_ = reinterpret_cast<float*>(take(groups_ * 64));
    ranges_ = reinterpret_cast<Ranges*>(take(groups_ * sizeof(Ranges)));
    copies_ = take(2 * kTokens * d_pad() * 2);
    v_ = take(kTokens * d_pad() * 2);
    s_ = reinterpret_cast<float*>(take(kTokens * 64));
    p_ = take(kTokens * 32);

    prefetcher_.Begin(task.kv_begin / kWindow * kWindow);
    prefetcher_.Step(prefetcher_.kRows);
    PackQ(task, d_pad(), q_);
    std::fill_n(acc_, groups_ * d_pad() * kLanes, 0.0f);
    std::fill_n(m_, groups_ * kLanes, kNegInf);
    std::fill_n(l_, groups_ * kLanes, 0.0f);
    std::fill_n(l_rounded_, groups_ * kLanes, 0.0f);
    for (int32_t g = 0; g < groups_; ++g) ranges_[g].Set(task, g * kLanes);
  }

  int32_t d() const { return kHeadDim > 0 ? kHeadDim : task_.head_dim; }
  int32_t d_pad() const { return RoundUp(d(), 32); }

  // Where each 16 tokens lie. They are read in place if they are in one page, all in range, and end on a tile column; else copied,
  // with zeros for what is outside the range.
  void Locate(int32_t tile) {
    const HeadKv& kv = task_.kv;
    for (int32_t b = 0; b < kBlocks; ++b) {
      const int32_t index = tile + b * kBlock;
      if (d() == d_pad() && kv.page_size % kBlock == 0 && index >= task_.kv_begin && index + kBlock <= task_.kv_end) {
        blocks_[b] = {.k = kv.K(index), .v = kv.V(index), .stride = kv.slot_bytes};
        continue;
      }
      const int64_t stride = d_pad() * 2;
      std::byte *k = copies_ + 2 * b * kBlock * stride, *v = k + kBlock * stride;
      blocks_[b] = {.k = k, .v = v, .stride = stride};
      std::memset(k, 0, 2 * kBlock * stride);
      for (int32_t t = std::max(index, task_.kv_begin); t < std::min(index + kBlock, task_.kv_end); ++t) {
        std::memcpy(k + (t - index) * stride, kv.K(t), d() * 2);
        std::memcpy(v + (t - index) * stride, kv.V(t), d() * 2);
      }
    }
  }

  // [d_pad / 16][16 token pairs][16 dims] pairs. Unpacking works within 128-bit lanes, so the 32 dims of two neighbouring tiles are
  // shuffled; StoreStates puts them in order.
  void InterleaveV() {
    std::byte* to = v_;
    for (const Block& block : blocks_) {
      const std::byte* from = block.v;
      for (int32_t pair = 0; pair < kBlock / 2; ++pair, from += 2 * block.stride, to += 64) {
        prefetcher_.Step(1);
        for (int32_t e = 0; e < d_pad(); e += 32) {
          const __m512i even = _mm512_loadu_si512(from + e * 2), odd = _mm512_loadu_si512(from + block.stride + e * 2);
          _mm512_store_si512(to + e * 64, _mm512_unpacklo_epi16(even, odd));
          _mm512_store_si512(to + e * 64 + 1024, _mm512_unpackhi_epi16(even, odd));
        }
      }
    }
  }

  // One KV tile for 16 rows: score, softmax, accumulate.
  void Step(int32_t g, int32_t tile) {
    Score(g);
    float scale = scale_;
    if (task_.soft_cap > 0 || !ranges_[g].SeeAll(tile, tile + kTokens)) {
      MaskScores(task_, ranges_[g], tile, kTokens, s_);
      if (task_.soft_cap > 0) scale = 1.0f;
    }
    Softmax(g, scale);
    int32_t e = 0;
    for (; e + 64 <= d_pad(); e += 64) Accumulate<4>(g, e);
    if (e < d_pad()) Accumulate<2>(g, e);
  }

  // Rows to fetch beside two tile products: half of what one KV tile's time must bring in comes beside products.
  uint32_t FetchedPerTwoProducts() const { return std::max(1, 512 / d_pad()); }

  void Score(int32_t g) {
    const std::byte* q = q_ + static_cast<int64_t>(g) * d_pad() * 32;
    OrderStoresBeforeTileLoads();
    _tile_zero(0);
    _tile_zero(1);
    for (int32_t at = 0; at < d_pad() * 2; at += 64, q += 1024) {
      _tile_loadd(6, q, 64);
      _tile_loadd(4, blocks_[0].k + at, blocks_[0].stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, blocks_[1].k + at, blocks_[1].stride);
      _tile_dpbf16ps(1, 5, 6);
      prefetcher_.Step(FetchedPerTwoProducts());
    }
    _tile_stored(0, s_, 64);
    _tile_stored(1, s_ + kBlock * kLanes, 64);
  }

  // s_ -> p_, rounded to bf16. Output and l_rounded_ are sums of P as it is multiplied; l_ is their unrounded sum.
  void Softmax(int32_t g, float scale) {
    F32 max[4];
    for (int i = 0; i < 4; ++i) max[i] = Lanes::Load(s_ + i * kLanes);
    for (int32_t t = 4; t < kTokens; t += 4) {
      for (int i = 0; i < 4; ++i) max[i] = Lanes::Max(max[i], Lanes::Load(s_ + (t + i) * kLanes));
    }
    const F32 factor = Lanes::Set1(scale);
    const F32 tile_max = Lanes::Max(Lanes::Max(max[0], max[1]), Lanes::Max(max[2], max[3])) * factor;
    const F32 limit = Lanes::Load(m_ + g * kLanes) + kSlack;
    if (const __mmask16 raised = _mm512_cmp_ps_mask(tile_max, limit, _CMP_GT_OQ)) Raise(g, raised, tile_max);

    const F32 reference = Lanes::SafeMax(Lanes::Load(m_ + g * kLanes));
    F32 sum[2] = {Lanes::Load(l_ + g * kLanes), F32{}};
    F32 rounded[2] = {Lanes::Load(l_rounded_ + g * kLanes), F32{}};
    __m512i pairs[16];
    for (int32_t i = 0; i < 16; ++i) {
      const float* s = s_ + 2 * i * kLanes;
      const F32 p0 = Lanes::ScaledExp2<5>(_mm512_fmsub_ps(Lanes::Load(s), factor, reference));
      const F32 p1 = Lanes::ScaledExp2<5>(_mm512_fmsub_ps(Lanes::Load(s + kLanes), factor, reference));
      sum[0] += p0;
      sum[1] += p1;
      pairs[i] = RoundToPairs(p0, p1);
      rounded[0] += LowOfPairs(pairs[i]);
      rounded[1] += HighOfPairs(pairs[i]);
      prefetcher_.Step(1);
    }
    Lanes::Store(l_ + g * kLanes, sum[0] + sum[1]);
    Lanes::Store(l_rounded_ + g * kLanes, rounded[0] + rounded[1]);
    Transpose16x16(pairs);
    for (int32_t row = 0; row < kLanes; ++row) _mm512_store_si512(p_ + row * 64, pairs[row]);
  }

  // Brings the lanes of `raised` to a new maximum.
  void Raise(int32_t g, __mmask16 raised, F32 tile_max) {
    const F32 old = Lanes::Load(m_ + g * kLanes), now = _mm512_mask_mov_ps(old, raised, tile_max);
    const F32 factor = Lanes::ScaledExp2<6>(old - Lanes::SafeMax(now));  // 1 where m stays, 0 where the state is empty
    Lanes::Store(m_ + g * kLanes, now);
    for (float* l : {l_ + g * kLanes, l_rounded_ + g * kLanes}) Lanes::Store(l, Lanes::Load(l) * factor);
    alignas(64) float factors[kLanes];
    Lanes::Store(factors, factor);
    float* acc = acc_ + g * d_pad() * kLanes;
    for (int32_t e = 0; e < d_pad(); e += 16) {
      for (int32_t row = 0; row < kLanes; ++row, acc += 16) {
        Lanes::Store(acc, Lanes::Load(acc) * factors[row]);
      }
    }
  }

  // kDims tiles of 16 dims from dim e on.
  template <int kDims>
  void Accumulate(int32_t g, int32_t e) {
    float* acc = acc_ + (g * d_pad() + e) * kLanes;
    const std::byte* v = v_ + e * 64;
    OrderStoresBeforeTileLoads();
    _tile_loadd(4, p_, 64);
    _tile_loadd(0, acc, 64);
    _tile_loadd(5, v, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(1, acc + 256, 64);
    _tile_loadd(6, v + 1024, 64);
    _tile_dpbf16ps(1, 4, 6);
    prefetcher_.Step(FetchedPerTwoProducts());
    if constexpr (kDims == 4) {
      _tile_loadd(2, acc + 512, 64);
      _tile_loadd(5, v + 2048, 64);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(3, acc + 768, 64);
      _tile_loadd(6, v + 3072, 64);
      _tile_dpbf16ps(3, 4, 6);
      prefetcher_.Step(FetchedPerTwoProducts());
    }
    _tile_stored(0, acc, 64);
    _tile_stored(1, acc + 256, 64);
    if constexpr (kDims == 4) {
      _tile_stored(2, acc + 512, 64);
      _tile_stored(3, acc + 768, 64);
    }
  }

  // acc was summed with rounded weights. The stored acc is their mean of V times the unrounded l: the output is normalised by the
  // rounded weights, while l, which gives the LSE and the weight of this state in a merge, carries no rounding of P.
  void StoreStates(const TileStates& states) const {
    std::copy_n(m_, task_.num_rows(), states.m);
    std::copy_n(l_, task_.num_rows(), states.l);
    // InterleaveV left dims 0-3, 8-11, 16-19, 24-27 in the first of two tiles, the others in the second.
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int32_t row = 0; row < task_.num_rows(); ++row) {
      const F32 factor = Lanes::Set1(l_rounded_[row] > 0 ? l_[row] / l_rounded_[row] : 1.0f);
      for (int32_t e = 0; e < d(); e += 32) {
        const float* acc = acc_ + (row / kLanes * d_pad() + e) * kLanes + row % kLanes * 16;
        const F32 a = Lanes::Load(acc), b = Lanes::Load(acc + 256);
        float* to = states.acc + row * states.acc_stride + e;
        const uint32_t valid = d() - e >= 32 ? ~uint32_t{0} : (uint32_t{1} << (d() - e)) - 1;
        _mm512_mask_storeu_ps(to, static_cast<__mmask16>(valid), _mm512_permutex2var_ps(a, first, b) * factor);
        _mm512_mask_storeu_ps(to + 16, static_cast<__mmask16>(valid >> 16), _mm512_permutex2var_ps(a, second, b) * factor);
      }
    }
  }

  const TileTask& task_;
  Prefetcher<kHeadDim> prefetcher_;
  int32_t groups_;              // of 16 rows
  float scale_;                 // > 0; a negative one is folded into Q
  std::byte* q_;                // [group][d_pad / 2][16] pairs
  float* acc_;                  // [group][d_pad / 16][16 rows][16 dims]
  float *m_, *l_, *l_rounded_;  // [group][16]
  Ranges* ranges_;              // [group]
  std::byte* copies_;           // [kBlocks][2][16][d_pad] bf16
  std::byte* v_;                // as InterleaveV leaves it
  float* s_;                    // [kTokens][16]: S^T
  std::byte* p_;                // [16 rows][kTokens] bf16
  Block blocks_[kBlocks];
};

}  // namespace

TileKernel AmxBf16StreamTile() { return StreamKernel<AmxStream>("amx-bf16 stream tile"); }

}  // namespace coppice::attention::cpu
#pragma GCC pop_options
#endif
