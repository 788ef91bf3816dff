// Stream tiles in bf16 dots, for CPUs without a tile unit: dims in the lanes, up to eight rows to one pass over a KV tile.
//
//   S [rows x tokens] = Q K^T         K as it lies in the pages; the lanes of 16 sums are added together
//   P                 = 2^(S - m)     tokens in the lanes
//   O [rows x dims]  += P V           V with each two tokens interleaved, two shuffles for 64 elements
//
// Meanwhile the tile to come is fetched, line by line in the order in which it lies in the pages (docs/attention.md says what that
// gives). Layer: attention/cpu. Milakov & Gimelshein (online softmax).
#include "attention/cpu/stream_tile_bf16.h"

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
#include "attention/cpu/page_walk.h"
#include "attention/cpu/tile_bf16.h"

namespace coppice::attention::cpu {
namespace {

// Of a KV tile: at head_dim 128 it, the tile that is fetched meanwhile and all operands stay in 48 KiB of L1.
constexpr int32_t kTokens = 32;
constexpr int32_t kMaxRows = 8;  // that pass over a KV tile together

inline __m512bh AsPairs(__m512i x) { return reinterpret_cast<__m512bh>(x); }

// Requests the lines of a range of tokens in the order of memory: K, then V of each page. Where slots do not follow each other
// without a gap, row by row.
class LineFetcher {
 public:
  explicit LineFetcher(const TileTask& task)
      : kv_(task.kv),
        row_bytes_(task.head_dim * 2),
        longest_run_(kv_.slot_bytes == row_bytes_ ? kv_.page_size : 1),
        first_(task.kv_begin),
        end_(task.kv_end),
        walk_(kv_, first_) {}

  void Begin(int32_t token) {
    token = std::clamp(token, first_, end_);
    if (walk_.index() != token) walk_ = PageWalk(kv_, token);
    v_is_next_ = false;
    NextRun();
  }
  // The first `tokens` of the range at once.
  void BeginAndFetch(int32_t tokens) {
    Begin(first_);
    FetchSlowly(2 * tokens * ((row_bytes_ + 63) / 64));
  }
  // The next kLines lines; past the end of the task's range, none.
  template <int kLines>
  [[gnu::always_inline]] void Fetch() {
    if (left_ < kLines) [[unlikely]]
      return FetchSlowly(kLines);
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(at_ + i * kCacheLine);
    at_ += kLines * kCacheLine;
    left_ -= kLines;
  }

 private:
  [[gnu::noinline]] void FetchSlowly(int lines) {
    for (; lines > 0; --lines) {
      if (left_ == 0) NextRun();
      if (left_ == 0) return;
      __builtin_prefetch(at_);
      at_ += kCacheLine;
      --left_;
    }
  }
  // K of the tokens that lie in one page, then their V.
  void NextRun() {
    left_ = 0;
    if (walk_.index() >= end_) return;
    const int32_t tokens = std::min({end_ - walk_.index(), walk_.left_in_page(), longest_run_});
    at_ = v_is_next_ ? walk_.V() : walk_.K();
    left_ = RoundUp(tokens * row_bytes_, kCacheLine) / kCacheLine;
    if (v_is_next_) walk_.Advance(tokens);
    v_is_next_ = !v_is_next_;
  }

  const HeadKv& kv_;
  int32_t row_bytes_, longest_run_, first_, end_;
  PageWalk walk_;     // to the tokens whose K, or V, is next
  int32_t left_ = 0;  // lines of the run
  bool v_is_next_ = false;
  const std::byte* at_ = nullptr;
};

// kHeadDim 0: any, known at run time.
template <int32_t kHeadDim>
class DotStream {
 public:
  static size_t ScratchBytes(int32_t head_dim, int32_t max_rows) {
    const size_t d = RoundUp(head_dim, 32), rows = RoundUp(max_rows, kMaxRows);
    return rows * (d * 2 + d * 4 + 4 + 2 * 64) + 64 + kMaxRows * kTokens * (4 + 2) + 2 * kTokens * sizeof(void*);
  }

  static void Run(const TileTask& task, const TileStates& states, std::byte* scratch) {
    DotStream self(task, scratch);
    self.fetcher_.BeginAndFetch(std::min(kTokens, task.kv_end - task.kv_begin));  // not asked for yet
    for (int32_t tile = task.kv_begin / kTokens * kTokens; tile < task.kv_end; tile += kTokens) {
      self.Locate(tile);
      self.fetcher_.Begin(tile + kTokens);
      self.may_fetch_ = true;
      for (int32_t row = 0; row < task.num_rows(); row += kMaxRows) {
        const int32_t rows = task.num_rows() - row;
        rows > 4   ? self.template Step<8>(row, tile)
        : rows > 2 ? self.template Step<4>(row, tile)
        : rows > 1 ? self.template Step<2>(row, tile)
                   : self.template Step<1>(row, tile);
      }
    }
    self.StoreStates(states);
  }

 private:
  DotStream(const TileTask& task, std::byte* scratch) : task_(task), fetcher_(task), walk_(task.kv, task.kv_begin) {
    const auto take = [&](size_t bytes) {
      std::byte* p = scratch;
      scratch += RoundUp(bytes, size_t{64});
      return p;
    };
    const int32_t rows = task.num_rows(), padded = RoundUp(rows, kMaxRows);
    q_ = take(size_t(padded) * d_pad() * 2);
    acc_ = reinterpret_cast<float*>(take(size_t(padded) * d_pad() * 4));
    l_ = reinterpret_cast<float*>(take(padded * 64));
    l_rounded_ = reinterpret_cast<float*>(take(padded * 64));
    m_ = reinterpret_cast<float*>(take(padded * 4));
    s_ = reinterpret_cast<float*>(take(kMaxRows * kTokens * 4));
    p_ = take(kMaxRows * kTokens * 2);
    k_rows_ = reinterpret_cast<const std::byte**>(take(kTokens * sizeof(void*)));
    v_rows_ = reinterpret_cast<const std::byte**>(take(kTokens * sizeof(void*)));

    std::memset(q_, 0, size_t(rows) * d_pad() * 2);
    for (int32_t row = 0; row < rows; ++row) {
      const std::byte* from = task.q + task.queries[row / task.group_size].q_row * task.q_row_bytes;
      std::memcpy(q_ + row * d_pad() * 2, from + static_cast<int64_t>(row % task.group_size) * d() * 2, d() * 2);
    }
    std::fill_n(acc_, padded * d_pad(), 0.0f);
    std::fill_n(l_, rows * kLanes, 0.0f);
    std::fill_n(l_rounded_, rows * kLanes, 0.0f);
    std::fill_n(m_, rows, kNegInf);
    std::memset(p_, 0, kMaxRows * kTokens * 2);  // rows that pad a step keep weights of 0
  }

  int32_t d() const { return kHeadDim > 0 ? kHeadDim : task_.head_dim; }
  int32_t d_pad() const { return RoundUp(d(), 32); }

  // Where the tokens of the next tile lie; those outside the task's range repeat one inside: their weights are 0. Not inlined:
  // beside the loops of the steps it cost 4 rows 7 %.
  [[gnu::noinline]] void Locate(int32_t tile) {
    const int32_t begin = std::max(tile, task_.kv_begin), end = std::min(tile + kTokens, task_.kv_end);
    walk_.ForEachRow(end, [&](int32_t index, const std::byte* k, const std::byte* v) {
      k_rows_[index - tile] = k;
      v_rows_[index - tile] = v;
    });
    for (const std::byte** rows : {k_rows_, v_rows_}) {
      std::fill(rows, rows + (begin - tile), rows[begin - tile]);
      std::fill(rows + (end - tile), rows + kTokens, rows[begin - tile]);
    }
  }

  // 32 dims of a row from dim e on; zeros follow the last one.
  [[gnu::always_inline]] __m512i LoadDims(const std::byte* row, int32_t e) const {
    if constexpr (kHeadDim > 0 && kHeadDim % 32 == 0) return _mm512_loadu_si512(row + e * 2);
    return _mm512_maskz_loadu_epi16(d() - e >= 32 ? ~__mmask32{0} : (__mmask32{1} << (d() - e)) - 1, row + e * 2);
  }

  // One KV tile for the rows from `row` on, of which there may be fewer than kN: score, softmax, accumulate.
  template <int kN>
  void Step(int32_t row, int32_t tile) {
    const int32_t rows = std::min(kN, task_.num_rows() - row);
    int32_t first = kTokens, last = 0;  // what any of them sees
    for (int32_t r = row; r < row + rows; ++r) {
      const TileQuery& query = task_.queries[r / task_.group_size];
      const int32_t begin = std::max(query.begin - tile, 0), end = std::min(query.end - tile, kTokens);
      if (begin < end) first = std::min(first, begin), last = std::max(last, end);
    }
    if (first >= last) return;
    const bool fetch = may_fetch_;
    may_fetch_ = false;
    uint32_t every_nth = 0;  // tokens with which the first row fetches; each row has its own, so that requests spread evenly
    for (int32_t i = 0; fetch && i < kLanes; i += rows) every_nth |= uint32_t{1} << i;
    for (int32_t t = first / kLanes * kLanes; t < last; t += kLanes) {
      for (int32_t r = 0; r < rows; ++r) Score(row + r, r, t, every_nth << r);
    }
    for (int32_t r = 0; r < rows; ++r) Softmax(row + r, r, tile);
    // Times 32 dims, whose sums are in registers together: 16 sums, or all dims.
    constexpr int kHeld = std::min(std::max(8 / kN, 1), kHeadDim > 0 ? kHeadDim / 32 : 4);
    int32_t e = 0;
    for (; e + 32 * kHeld <= d_pad(); e += 32 * kHeld) {
      fetch ? Accumulate<kN, kHeld, true>(row, e, first, last) : Accumulate<kN, kHeld, false>(row, e, first, last);
    }
    for (; e < d_pad(); e += 32) {
      fetch ? Accumulate<kN, 1, true>(row, e, first, last) : Accumulate<kN, 1, false>(row, e, first, last);
    }
  }

  // As many lines as K of one token has.
  [[gnu::always_inline]] void FetchRow() {
    if constexpr (kHeadDim > 0) {
      fetcher_.template Fetch<kHeadDim / 32>();
    } else {
      for (int32_t e = 0; e < d_pad(); e += 32) fetcher_.template Fetch<1>();
    }
  }

  // Scores of the r-th row of a step against 16 tokens from t on; bit i of `fetch`: request as many lines as a token's K has with
  // the i-th. Whole vectors are stored: the softmax loads such, and could not have smaller stores forwarded to it before they
  // retire.
  void Score(int32_t row, int32_t r, int32_t t, uint32_t fetch) {
    constexpr int kHeld = std::max(kHeadDim / 32, 1);
    const std::byte* q = q_ + row * d_pad() * 2;
    __m512i held[kHeld];
#pragma GCC unroll 4
    for (int i = 0; i < kHeld; ++i) held[i] = _mm512_load_si512(q + i * 64);
    F32 sum[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const std::byte* k = k_rows_[t + i];
      sum[i] = F32{};
      if ((fetch >> i & 1) != 0) FetchRow();
      for (int32_t e = 0; e < d_pad(); e += 32) {
        const __m512i x = kHeadDim > 0 ? held[e / 32] : _mm512_load_si512(q + e * 2);
        sum[i] = _mm512_dpbf16_ps(sum[i], AsPairs(x), AsPairs(LoadDims(k, e)));
      }
    }
    Lanes::Store(s_ + r * kTokens + t, ScaleScores<Lanes>(task_, Lanes::SumEach(sum)));
  }

  // s_ -> p_, rounded to bf16. acc_ and l_rounded_ are sums of P as it is multiplied; l_ is their unrounded sum.
  void Softmax(int32_t row, int32_t r, int32_t tile) {
    float* s = s_ + r * kTokens;
    if (const TileQuery& query = task_.queries[row / task_.group_size]; !query.SeesAll(tile, tile + kTokens)) {
      for (int32_t t = 0; t < kTokens; ++t) {
        if (!query.Sees(tile + t)) s[t] = kNegInf;
      }
    }
    const F32 low = Lanes::Load(s), high = Lanes::Load(s + kLanes), max = Lanes::Max(low, high);
    if (_mm512_cmp_ps_mask(max, Lanes::Set1(m_[row] + kSlack), _CMP_GT_OQ)) Raise(row, Lanes::MaxOf(max));
    const F32 m = Lanes::Set1(m_[row] == kNegInf ? 0.0f : m_[row]);
    const F32 p0 = Lanes::ScaledExp2<5>(low - m), p1 = Lanes::ScaledExp2<5>(high - m);
    const __m512i p = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(p1, p0));
    _mm512_store_si512(p_ + r * kTokens * 2, p);
    float *l = l_ + row * kLanes, *rounded = l_rounded_ + row * kLanes;
    Lanes::Store(l, Lanes::Load(l) + (p0 + p1));
    Lanes::Store(rounded, Lanes::Load(rounded) + (LowOfPairs(p) + HighOfPairs(p)));
  }

  void Raise(int32_t row, float m) {
    const F32 factor = Lanes::Set1(Rescale(m_[row], m));
    m_[row] = m;
    for (float* l : {l_ + row * kLanes, l_rounded_ + row * kLanes}) Lanes::Store(l, Lanes::Load(l) * factor);
    float* acc = acc_ + row * d_pad();
    for (int32_t e = 0; e < d_pad(); e += kLanes) Lanes::Store(acc + e, Lanes::Load(acc + e) * factor);
  }

  // acc[row .. + kN][e .. + 32 kVectors] += P V over the tile's tokens [first, last), pair by pair. Unpacking works within 128-bit
  // lanes, so the dims of each two accumulators are shuffled; StoreStates puts them in order.
  template <int kN, int kVectors, bool kFetch>
  void Accumulate(int32_t row, int32_t e, int32_t first, int32_t last) {
    float* acc = acc_ + row * d_pad() + e;
    F32 sum[kN][2 * kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kN; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * kVectors; ++c) sum[r][c] = Lanes::Load(acc + r * d_pad() + c * kLanes);
    }
    for (int32_t t = first / 2 * 2; t < last; t += 2) {
      if constexpr (kFetch) fetcher_.template Fetch<2 * kVectors>();
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) {
        const __m512i a = LoadDims(v_rows_[t], e + c * 32), b = LoadDims(v_rows_[t + 1], e + c * 32);
        const __m512bh low = AsPairs(_mm512_unpacklo_epi16(a, b)), high = AsPairs(_mm512_unpackhi_epi16(a, b));
#pragma GCC unroll 8
        for (int r = 0; r < kN; ++r) {
          int32_t pair;
          std::memcpy(&pair, p_ + (r * kTokens + t) * 2, 4);
          const __m512bh p = AsPairs(_mm512_set1_epi32(pair));
          sum[r][2 * c] = _mm512_dpbf16_ps(sum[r][2 * c], p, low);
          sum[r][2 * c + 1] = _mm512_dpbf16_ps(sum[r][2 * c + 1], p, high);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kN; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * kVectors; ++c) Lanes::Store(acc + r * d_pad() + c * kLanes, sum[r][c]);
    }
  }

  // acc_ was summed with rounded weights. The stored acc is their mean of V times the unrounded l: the output is normalised by
  // the rounded weights, while l, which gives the LSE and the weight of this state in a merge, carries no rounding of P.
  void StoreStates(const TileStates& states) const {
    // Dims 0-3, 8-11, 16-19, 24-27 are in the first of two accumulators, the others in the second.
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int32_t row = 0; row < task_.num_rows(); ++row) {
      const float l = Lanes::SumOf(Lanes::Load(l_ + row * kLanes));
      const float rounded = Lanes::SumOf(Lanes::Load(l_rounded_ + row * kLanes));
      states.m[row] = m_[row];
      states.l[row] = l;
      const F32 factor = Lanes::Set1(rounded > 0 ? l / rounded : 1.0f);
      for (int32_t e = 0; e < d(); e += 32) {
        const float* acc = acc_ + row * d_pad() + e;
        const F32 a = Lanes::Load(acc), b = Lanes::Load(acc + kLanes);
        float* to = states.acc + row * states.acc_stride + e;
        const uint32_t valid = d() - e >= 32 ? ~uint32_t{0} : (uint32_t{1} << (d() - e)) - 1;
        _mm512_mask_storeu_ps(to, static_cast<__mmask16>(valid), _mm512_permutex2var_ps(a, first, b) * factor);
        _mm512_mask_storeu_ps(to + kLanes, static_cast<__mmask16>(valid >> 16), _mm512_permutex2var_ps(a, second, b) * factor);
      }
    }
  }

  const TileTask& task_;
  LineFetcher fetcher_;
  PageWalk walk_;                        // to the tile that is located next
  bool may_fetch_ = true;                // the first step of a tile fetches the next tile
  std::byte* q_;                         // [row][d_pad] bf16
  float* acc_;                           // [row][d_pad], as Accumulate leaves it
  float *l_, *l_rounded_;                // [row][16]: their lanes are added at the end
  float* m_;                             // [row]
  float* s_;                             // [kMaxRows][kTokens]
  std::byte* p_;                         // [kMaxRows][kTokens] bf16
  const std::byte **k_rows_, **v_rows_;  // [kTokens]
};

}  // namespace

TileKernel Avx512Bf16StreamTile() { return StreamKernel<DotStream>("avx512-bf16 stream tile"); }

}  // namespace coppice::attention::cpu
#pragma GCC pop_options
#endif
