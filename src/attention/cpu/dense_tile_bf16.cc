// Dense tiles in bf16. Both products are computed transposed, so that the lanes of a vector are 16 query rows throughout:
//
//   S^T [tokens x rows] = K Q^T       K enters as it lies in the pages; Q is packed once per tile
//   P^T = 2^(S^T - m)                 maxima and sums run down the lanes: no shuffles between rows
//   O^T [dims x rows]  += V^T P^T     P^T needs one permutation; V is packed once per KV tile for all rows
//
// Layouts (one "pair" is two bf16 in a dword): Q and P^T [pair][16 rows], V^T for AMX [dims][16 token pairs], V for dots
// [token pair][dims], accumulators O^T [dims][16 rows] fp32.
// Layer: attention/cpu. Hydragen section 3.2 (all rows of a prefix in one product); Milakov & Gimelshein (online softmax).
#include "attention/cpu/dense_tile_bf16.h"

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

// Tokens whose V is packed at a time: 128 KiB at head_dim 128, a sixteenth of L2. Also the unit of docs/numerics.md.
constexpr int32_t kTile = 512;
constexpr int32_t kChunk = 32;  // tokens per softmax step: one AMX step of the second product

// Everything about one run. Pointers into the worker's scratch memory.
struct Run {
  const TileTask& task;
  int32_t d, d_pad;          // d_pad: head_dim padded to 32
  int32_t groups;            // of 16 rows
  float scale;               // > 0; a negative one is folded into Q
  std::byte* q;              // [group][d_pad / 2][16] pairs
  float* acc;                // [group][d_pad][16]
  float *m, *l;              // [group][16]
  std::byte* k;              // [kTile][d_pad] bf16: K where pages cannot be read in place
  std::byte* v;              // packed V of the KV tile
  std::byte* p;              // [kTile / kChunk][2 groups][16 token pairs][16] pairs: P^T of two groups
  float* s;                  // [2 groups][kChunk][16]: S^T of one chunk
  Ranges* ranges;            // [group]
  const std::byte** k_rows;  // [kTile]: where each token's K and V lie; zeros outside the task's range
  const std::byte** v_rows;
  std::byte* v_rows_copy;      // [kChunk][d_pad] bf16
  const std::byte** k_blocks;  // [kTile / 16]: where 16 tokens of K begin
  std::byte* zeros;

  static constexpr size_t kZeroBytes = 512;
  static size_t Bytes(int32_t head_dim, int32_t max_rows) {
    const size_t dp = RoundUp(head_dim, 32), g = RoundUp(max_rows, 2 * kLanes) / kLanes;
    return g * dp * (32 + 64) + g * 128 + kChunk * dp * 2 + 2 * kTile * dp * 2 + kTile * 64 + 2 * kChunk * 64 +
           g * RoundUp(sizeof(Ranges), size_t{64}) + 3 * kTile * sizeof(void*) + kZeroBytes + 1024;
  }
  Run(const TileTask& t, std::byte* scratch) : task(t), d(t.head_dim), d_pad(RoundUp(t.head_dim, 32)) {
    groups = RoundUp(t.num_rows(), kLanes) / kLanes;
    scale = std::abs(t.score_scale);
    const auto take = [&](size_t bytes) {
      std::byte* p = scratch;
      scratch += RoundUp(bytes, size_t{64});
      return p;
    };
    q = take(size_t(groups) * d_pad * 32);
    acc = reinterpret_cast<float*>(take(size_t(groups) * d_pad * 64));
    m = reinterpret_cast<float*>(take(groups * 64));
    l = reinterpret_cast<float*>(take(groups * 64));
    k = take(size_t(kTile) * d_pad * 2);
    v = take(size_t(kTile) * d_pad * 2);
    p = take(kTile * 64);
    s = reinterpret_cast<float*>(take(2 * kChunk * 64));
    ranges = reinterpret_cast<Ranges*>(take(groups * sizeof(Ranges)));
    k_rows = reinterpret_cast<const std::byte**>(take(kTile * sizeof(void*)));
    v_rows = reinterpret_cast<const std::byte**>(take(kTile * sizeof(void*)));
    k_blocks = reinterpret_cast<const std::byte**>(take(kTile / kLanes * sizeof(void*)));
    v_rows_copy = take(kChunk * d_pad * 2);
    zeros = take(kZeroBytes);
    std::memset(zeros, 0, kZeroBytes);
  }
};

// Token addresses of the tile; tokens outside [kv_begin, kv_end) read zeros.
void LocateTokens(const Run& run, int32_t tile, int32_t begin, int32_t end) {
  std::fill(run.k_rows + begin / kChunk * kChunk - tile, run.k_rows + begin - tile, run.zeros);
  std::fill(run.v_rows + begin / kChunk * kChunk - tile, run.v_rows + begin - tile, run.zeros);
  PageWalk(run.task.kv, begin).ForEachRow(end, [&](int32_t index, const std::byte* k, const std::byte* v) {
    run.k_rows[index - tile] = k;
    run.v_rows[index - tile] = v;
  });
  const int32_t padded = RoundUp(end, kChunk);
  std::fill(run.k_rows + end - tile, run.k_rows + padded - tile, run.zeros);
  std::fill(run.v_rows + end - tile, run.v_rows + padded - tile, run.zeros);
}

// ------------------------------------------------------------------------------------------------------------------ products
// How the two matrix products are done. PackKv prepares the chunks [first, last) of a tile, Scores fills run.s for `pair` (one or
// two) groups, Accumulate adds the chunks [first, last) of P V to their accumulators.

struct Amx {
  static constexpr const char* kName = "amx-bf16 dense tile";

  using Session = AmxSession;

  // A block of 16 tokens can be read in place if its rows have one stride and end on a tile column.
  static bool ReadsPages(const Run& run) { return run.d % 32 == 0 && run.task.kv.page_size % kLanes == 0; }

  static void PackKv(const Run& run, int32_t tile, int32_t first, int32_t last) {
    for (int32_t chunk = first; chunk < last; ++chunk) PackV(run, tile, chunk);
    const bool in_place = ReadsPages(run);
    const std::byte* some_block = in_place ? run.task.kv.K(std::max(tile, run.task.kv_begin) / kLanes * kLanes) : nullptr;
    for (int32_t token = first * kChunk; token < last * kChunk; token += kLanes) {
      const int32_t index = tile + token;
      std::byte* packed = run.k + static_cast<int64_t>(token) * run.d_pad * 2;
      // A block without a token in range has no page; its scores are masked, so it may read any rows. Slots beside the range
      // inside a block may hold NaN: masked too, each token is a row of S^T.
      const bool in_range = index < run.task.kv_end && index + kLanes > run.task.kv_begin;
      run.k_blocks[token / kLanes] = !in_place ? packed : in_range ? run.task.kv.K(index) : some_block;
      if (in_place) continue;
      for (int32_t t = token; t < token + kLanes; ++t, packed += run.d_pad * 2) {
        std::memcpy(packed, run.k_rows[t], run.d * 2);
        std::memset(packed + run.d * 2, 0, (run.d_pad - run.d) * 2);
      }
    }
  }

  // V of a chunk, transposed: [d_pad][32 tokens]. Vectors are gathered so that each 128-bit lane holds 8 dims of tokens 8 apart:
  // what is left are 8 x 8 transpositions inside the lanes (24 shuffles for 8 dims instead of 40).
  static void PackV(const Run& run, int32_t tile, int32_t chunk) {
    const HeadKv& kv = run.task.kv;
    const int32_t index = tile + chunk * kChunk;
    const std::byte* eight[4];  // where each eight tokens begin
    int64_t stride = kv.slot_bytes;
    if (kv.page_size % 8 == 0 && index >= run.task.kv_begin && index + kChunk <= run.task.kv_end) {
      for (int l = 0; l < 4; ++l) eight[l] = run.v_rows[chunk * kChunk + 8 * l];
    } else {  // small pages, or a chunk at the end of the range
      stride = run.d_pad * 2;
      for (int32_t t = 0; t < kChunk; ++t) std::memcpy(run.v_rows_copy + t * stride, run.v_rows[chunk * kChunk + t], run.d * 2);
      for (int l = 0; l < 4; ++l) eight[l] = run.v_rows_copy + 8 * l * stride;
    }
    std::byte* to = run.v + static_cast<int64_t>(chunk) * run.d_pad * 64;
    for (int32_t e = 0; e < run.d; e += 8) {
      __m512i r[8], t[8];
      for (int j = 0; j < 8; ++j) {
        const int64_t at = j * stride + e * 2;
        r[j] = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(eight[0] + at)));
        r[j] = _mm512_inserti32x4(r[j], _mm_loadu_si128(reinterpret_cast<const __m128i*>(eight[1] + at)), 1);
        r[j] = _mm512_inserti32x4(r[j], _mm_loadu_si128(reinterpret_cast<const __m128i*>(eight[2] + at)), 2);
        r[j] = _mm512_inserti32x4(r[j], _mm_loadu_si128(reinterpret_cast<const __m128i*>(eight[3] + at)), 3);
      }
      for (int j = 0; j < 4; ++j) {
        t[2 * j] = _mm512_unpacklo_epi16(r[2 * j], r[2 * j + 1]);
        t[2 * j + 1] = _mm512_unpackhi_epi16(r[2 * j], r[2 * j + 1]);
      }
      for (int j = 0; j < 2; ++j) {
        r[4 * j] = _mm512_unpacklo_epi32(t[4 * j], t[4 * j + 2]);
        r[4 * j + 1] = _mm512_unpackhi_epi32(t[4 * j], t[4 * j + 2]);
        r[4 * j + 2] = _mm512_unpacklo_epi32(t[4 * j + 1], t[4 * j + 3]);
        r[4 * j + 3] = _mm512_unpackhi_epi32(t[4 * j + 1], t[4 * j + 3]);
      }
      for (int j = 0; j < 4; ++j, to += 128) {
        _mm512_store_si512(to, _mm512_unpacklo_epi64(r[j], r[j + 4]));
        _mm512_store_si512(to + 64, _mm512_unpackhi_epi64(r[j], r[j + 4]));
      }
    }
    std::memset(to, 0, (run.d_pad - run.d) * 64);
  }

  template <int kGroups>
  static void Scores(const Run& run, int32_t group, int32_t chunk) {
    const std::byte *k0 = run.k_blocks[2 * chunk], *k1 = run.k_blocks[2 * chunk + 1];
    const int64_t k_stride = ReadsPages(run) ? run.task.kv.slot_bytes : run.d_pad * 2;
    const std::byte *q0 = run.q + static_cast<int64_t>(group) * run.d_pad * 32, *q1 = q0 + static_cast<int64_t>(run.d_pad) * 32;
    const int32_t steps = run.d_pad / 32;
    OrderStoresBeforeTileLoads();
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kGroups == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int32_t step = 0; step < steps; ++step) {
      _tile_loadd(4, k0 + step * 64, k_stride);
      _tile_loadd(6, q0 + step * 1024, 64);
      _tile_loadd(5, k1 + step * 64, k_stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      if constexpr (kGroups == 2) {
        _tile_loadd(7, q1 + step * 1024, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, run.s, 64);
    _tile_stored(1, run.s + 16 * kLanes, 64);
    if constexpr (kGroups == 2) {
      _tile_stored(2, run.s + kChunk * kLanes, 64);
      _tile_stored(3, run.s + (kChunk + 16) * kLanes, 64);
    }
  }

  template <int kGroups>
  static void Accumulate(const Run& run, int32_t group, int32_t first, int32_t last) {
    float *acc0 = run.acc + static_cast<int64_t>(group) * run.d_pad * kLanes,
          *acc1 = acc0 + static_cast<int64_t>(run.d_pad) * kLanes;
    OrderStoresBeforeTileLoads();
    for (int32_t e = 0; e < run.d_pad; e += 32) {
      _tile_loadd(0, acc0 + e * kLanes, 64);
      _tile_loadd(1, acc0 + (e + 16) * kLanes, 64);
      if constexpr (kGroups == 2) {
        _tile_loadd(2, acc1 + e * kLanes, 64);
        _tile_loadd(3, acc1 + (e + 16) * kLanes, 64);
      }
      for (int32_t chunk = first; chunk < last; ++chunk) {
        const std::byte* v = run.v + (static_cast<int64_t>(chunk) * run.d_pad + e) * 64;
        const std::byte* p = run.p + static_cast<int64_t>(chunk) * 2048;
        _tile_loadd(4, v, 64);
        _tile_loadd(6, p, 64);
        _tile_loadd(5, v + 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if constexpr (kGroups == 2) {
          _tile_loadd(7, p + 1024, 64);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, acc0 + e * kLanes, 64);
      _tile_stored(1, acc0 + (e + 16) * kLanes, 64);
      if constexpr (kGroups == 2) {
        _tile_stored(2, acc1 + e * kLanes, 64);
        _tile_stored(3, acc1 + (e + 16) * kLanes, 64);
      }
    }
  }
};

struct Dots {
  static constexpr const char* kName = "avx512-bf16 dense tile";
  // Sums in registers together. A row's sums are the same, in the same order, however many groups share them.
  static constexpr int kChains = 16;
  struct Session {
    Session() {}  // nothing to set up
  };

  static __m512bh Broadcast(const std::byte* pair) {
    int32_t x;
    std::memcpy(&x, pair, 4);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(x));
  }
  static __m512bh Pairs(const std::byte* row) { return reinterpret_cast<__m512bh>(_mm512_load_si512(row)); }

  // V as token pairs: [pair][dims].
  static void PackKv(const Run& run, int32_t /*tile*/, int32_t first, int32_t last) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
                                         35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int32_t pair = first * kChunk / 2; pair < last * kChunk / 2; ++pair) {
      for (int32_t e = 0; e < run.d_pad; e += 32) {
        const __mmask32 valid = run.d - e >= 32 ? ~__mmask32{0} : (__mmask32{1} << (run.d - e)) - 1;
        const __m512i even = _mm512_maskz_loadu_epi16(valid, run.v_rows[2 * pair] + e * 2);
        const __m512i odd = _mm512_maskz_loadu_epi16(valid, run.v_rows[2 * pair + 1] + e * 2);
        std::byte* to = run.v + (static_cast<int64_t>(pair) * run.d_pad + e) * 4;
        _mm512_store_si512(to, _mm512_permutex2var_epi16(even, low, odd));
        _mm512_store_si512(to + 64, _mm512_permutex2var_epi16(even, high, odd));
      }
    }
  }

  template <int kGroups>
  static void Scores(const Run& run, int32_t group, int32_t chunk) {
    constexpr int kTokens = kChains / kGroups;
    for (int32_t t = 0; t < kChunk; t += kTokens) ScoresOf<kGroups>(run, group, chunk * kChunk + t, run.s + t * kLanes);
  }

  template <int kGroups>
  static void ScoresOf(const Run& run, int32_t group, int32_t token, float* s) {
    constexpr int kTokens = kChains / kGroups;
    const std::byte *q0 = run.q + static_cast<int64_t>(group) * run.d_pad * 32, *q1 = q0 + static_cast<int64_t>(run.d_pad) * 32;
    const std::byte* k[kTokens];
    F32 sum[kGroups][kTokens];
    for (int i = 0; i < kTokens; ++i) {
      k[i] = run.k_rows[token + i];
      for (int g = 0; g < kGroups; ++g) sum[g][i] = F32{};
    }
    for (int32_t pair = 0; pair < run.d / 2; ++pair) {
      const __m512bh a = Pairs(q0 + pair * 64), b = kGroups == 2 ? Pairs(q1 + pair * 64) : a;
#pragma GCC unroll 16
      for (int i = 0; i < kTokens; ++i) {
        const __m512bh x = Broadcast(k[i] + pair * 4);
        sum[0][i] = _mm512_dpbf16_ps(sum[0][i], a, x);
        if constexpr (kGroups == 2) sum[1][i] = _mm512_dpbf16_ps(sum[1][i], b, x);
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      for (int i = 0; i < kTokens; ++i) Lanes::Store(s + (g * kChunk + i) * kLanes, sum[g][i]);
    }
  }

  template <int kGroups>
  static void Accumulate(const Run& run, int32_t group, int32_t first, int32_t last) {
    float* acc[2] = {run.acc + static_cast<int64_t>(group) * run.d_pad * kLanes,
                     run.acc + static_cast<int64_t>(group + kGroups - 1) * run.d_pad * kLanes};
    constexpr int kDims = kChains / kGroups;
    for (int32_t e = 0; e < run.d_pad; e += kDims) {
      F32 sum[kGroups][kDims];
      for (int g = 0; g < kGroups; ++g) {
        for (int i = 0; i < kDims; ++i) sum[g][i] = Lanes::Load(acc[g] + (e + i) * kLanes);
      }
      for (int32_t chunk = first; chunk < last; ++chunk) {
        for (int32_t pair = 0; pair < kChunk / 2; ++pair) {
          const std::byte* p = run.p + chunk * 2048 + pair * 64;
          const std::byte* v = run.v + (static_cast<int64_t>(chunk * kChunk / 2 + pair) * run.d_pad + e) * 4;
          const __m512bh a = Pairs(p), b = kGroups == 2 ? Pairs(p + 1024) : a;
#pragma GCC unroll 16
          for (int i = 0; i < kDims; ++i) {
            const __m512bh x = Broadcast(v + i * 4);
            sum[0][i] = _mm512_dpbf16_ps(sum[0][i], a, x);
            if constexpr (kGroups == 2) sum[1][i] = _mm512_dpbf16_ps(sum[1][i], b, x);
          }
        }
      }
      for (int g = 0; g < kGroups; ++g) {
        for (int i = 0; i < kDims; ++i) Lanes::Store(acc[g] + (e + i) * kLanes, sum[g][i]);
      }
    }
  }
};

// ------------------------------------------------------------------------------------------------------------------- softmax

inline F32 ChunkMax(const float* s) {
  F32 max0 = Lanes::Load(s), max1 = Lanes::Load(s + kLanes);
  for (int32_t t = 2; t < kChunk; t += 2) {
    max0 = Lanes::Max(max0, Lanes::Load(s + t * kLanes));
    max1 = Lanes::Max(max1, Lanes::Load(s + (t + 1) * kLanes));
  }
  return Lanes::Max(max0, max1);
}

// P^T of a chunk, rounded to bf16, as token pairs; l sums the same rounded values, so that rounding P cannot bias the result.
inline void Exponentiate(const float* s, float scale, F32 m, std::byte* p, float* l) {
  const F32 factor = Lanes::Set1(scale), reference = Lanes::SafeMax(m);
  F32 even_sum = {}, odd_sum = {};
  for (int32_t t = 0; t < kChunk; t += 2) {
    const F32 p0 = Lanes::ScaledExp2<3>(_mm512_fmsub_ps(Lanes::Load(s + t * kLanes), factor, reference));
    const F32 p1 = Lanes::ScaledExp2<3>(_mm512_fmsub_ps(Lanes::Load(s + (t + 1) * kLanes), factor, reference));
    const __m512i both = RoundToPairs(p0, p1);
    _mm512_store_si512(p + t * 32, both);
    even_sum += LowOfPairs(both);
    odd_sum += HighOfPairs(both);
  }
  Lanes::Store(l, Lanes::Load(l) + (even_sum + odd_sum));
}

// Brings the lanes of `raised` to a new maximum.
void Raise(const Run& run, int32_t group, __mmask16 raised, F32 chunk_max) {
  float* m = run.m + group * kLanes;
  const F32 old = Lanes::Load(m), now = _mm512_mask_mov_ps(old, raised, chunk_max);
  const F32 factor = Lanes::ScaledExp2<6>(old - Lanes::SafeMax(now));  // 1 where m stays, 0 where the state is empty
  Lanes::Store(m, now);
  Lanes::Store(run.l + group * kLanes, Lanes::Load(run.l + group * kLanes) * factor);
  float* acc = run.acc + static_cast<int64_t>(group) * run.d_pad * kLanes;
  for (int32_t e = 0; e < run.d_pad; ++e) Lanes::Store(acc + e * kLanes, Lanes::Load(acc + e * kLanes) * factor);
}

// Asks the second-level cache for the KV of the tile that begins at `begin`, a share at a time, of which there are `chunks`: pages
// lie anywhere, and the hardware's prefetchers stop at the end of each. K of a page, then its V, as they lie in memory.
class TileFetcher {
 public:
  TileFetcher(const TileTask& task, int32_t begin, int32_t chunks)
      : row_bytes_(task.head_dim * 2),
        slot_bytes_(task.kv.slot_bytes),
        end_(std::min(begin + kTile, task.kv_end)),
        share_((end_ - begin + chunks - 1) / chunks),
        walk_(task.kv, std::min(begin, task.kv_end)) {}

  void FetchShare() {
    walk_.ForEachPage(std::min(end_, walk_.index() + share_), [&](int32_t, int32_t count, const std::byte* k, const std::byte* v) {
      for (const std::byte* row : {k, v}) {
        for (int32_t i = 0; i < count; ++i, row += slot_bytes_) {
          for (int32_t at = 0; at < row_bytes_; at += kCacheLine) __builtin_prefetch(row + at, /*write=*/0, kSecondLevel);
        }
      }
    });
  }

 private:
  int32_t row_bytes_;
  int64_t slot_bytes_;
  int32_t end_, share_;  // tokens
  PageWalk walk_;
};

// One KV tile for one or two groups: score, softmax, accumulate.
template <class Products, int kGroups>
void TileOfGroups(const Run& run, int32_t group, int32_t tile, int32_t begin, int32_t end, TileFetcher& next_tile) {
  const int32_t first_chunk = (begin - tile) / kChunk, last_chunk = RoundUp(end - tile, kChunk) / kChunk;
  int32_t pending = first_chunk;  // chunks whose P waits for V
  for (int32_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    Products::template Scores<kGroups>(run, group, chunk);
    next_tile.FetchShare();
    for (int g = 0; g < kGroups; ++g) {
      const Ranges& range = run.ranges[group + g];
      const int32_t index = tile + chunk * kChunk;
      float *s = run.s + g * kChunk * kLanes, *m = run.m + (group + g) * kLanes;
      float scale = run.scale;
      if (run.task.soft_cap > 0 || !range.SeeAll(index, index + kChunk)) {
        MaskScores(run.task, range, index, kChunk, s);
        if (run.task.soft_cap > 0) scale = 1.0f;
      }
      const F32 chunk_max = ChunkMax(s) * scale;
      const F32 limit = Lanes::Load(m) + kSlack;
      if (const __mmask16 raised = _mm512_cmp_ps_mask(chunk_max, limit, _CMP_GT_OQ)) {
        Products::template Accumulate<kGroups>(run, group, pending, chunk);  // their P belongs to the old maximum
        pending = chunk;
        Raise(run, group + g, raised, chunk_max);
      }
      Exponentiate(s, scale, Lanes::Load(m), run.p + chunk * 2048 + g * 1024, run.l + (group + g) * kLanes);
    }
  }
  Products::template Accumulate<kGroups>(run, group, pending, last_chunk);
}

// O^T -> rows.
void StoreStates(const Run& run, const TileStates& states) {
  for (int32_t g = 0; g < run.groups; ++g) {
    const int32_t rows = std::min(kLanes, run.task.num_rows() - g * kLanes);
    std::copy_n(run.m + g * kLanes, rows, states.m + g * kLanes);
    std::copy_n(run.l + g * kLanes, rows, states.l + g * kLanes);
    for (int32_t e = 0; e < run.d; e += 16) {
      __m512i r[16];
      const float* acc = run.acc + (static_cast<int64_t>(g) * run.d_pad + e) * kLanes;
      for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(acc + i * kLanes);
      Transpose16x16(r);
      const __mmask16 valid = run.d - e >= 16 ? 0xffff : 0x00ff;
      for (int32_t i = 0; i < rows; ++i)
        _mm512_mask_storeu_epi32(states.acc + (g * kLanes + i) * states.acc_stride + e, valid, r[i]);
    }
  }
}

template <class Products>
void RunDense(const TileTask& task, const TileStates& states, std::byte* scratch) {
  const Run run(task, scratch);
  [[maybe_unused]] typename Products::Session session;
  PackQ(task, run.d_pad, run.q);
  std::fill_n(run.acc, static_cast<int64_t>(run.groups) * run.d_pad * kLanes, 0.0f);
  std::fill_n(run.m, run.groups * kLanes, kNegInf);
  std::fill_n(run.l, run.groups * kLanes, 0.0f);
  for (int32_t g = 0; g < run.groups; ++g) run.ranges[g].Set(task, g * kLanes);

  for (int32_t tile = task.kv_begin / kTile * kTile; tile < task.kv_end; tile += kTile) {
    const int32_t begin = std::max(tile, task.kv_begin), end = std::min(tile + kTile, task.kv_end);
    LocateTokens(run, tile, begin, end);
    const int32_t first_chunk = (begin - tile) / kChunk, last_chunk = RoundUp(end - tile, kChunk) / kChunk;
    if (begin == task.kv_begin) {  // the first tile, not asked for yet: two chunks ahead
      TileFetcher this_tile(task, begin, last_chunk - first_chunk);
      this_tile.FetchShare();
      for (int32_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
        this_tile.FetchShare();
        Products::PackKv(run, tile, chunk, chunk + 1);
      }
    } else {
      Products::PackKv(run, tile, first_chunk, last_chunk);
    }
    TileFetcher next_tile(task, tile + kTile, (last_chunk - first_chunk) * (RoundUp(run.groups, 2) / 2));
    for (int32_t g = 0; g < run.groups; g += 2) {
      const int32_t groups = std::min(2, run.groups - g);
      int32_t first = run.ranges[g].first, last = run.ranges[g].last;
      if (groups == 2) first = std::min(first, run.ranges[g + 1].first), last = std::max(last, run.ranges[g + 1].last);
      first = std::max(first, begin), last = std::min(last, end);
      if (first >= last) continue;
      groups == 2 ? TileOfGroups<Products, 2>(run, g, tile, first, last, next_tile)
                  : TileOfGroups<Products, 1>(run, g, tile, first, last, next_tile);
    }
  }
  StoreStates(run, states);
}

}  // namespace

TileKernel AmxBf16DenseTile() { return {Amx::kName, 2 * kLanes, kChunk, Run::Bytes, RunDense<Amx>}; }
TileKernel Avx512Bf16DenseTile() { return {Dots::kName, kLanes, 8, Run::Bytes, RunDense<Dots>}; }

}  // namespace coppice::attention::cpu
#pragma GCC pop_options
#endif
