// Bodies of kernels.h, included once by each kernels_<isa>.cc with COPPICE_ISA set to its namespace; one text serves every width.
// No standard headers with inline functions: their instances would be merged across translation units and could run on machines
// without these instructions.
// Layer: ops, private.

#include <stdint.h>

#include "core/cache_line.h"
#include "core/cpu/vectors.h"
#include "ops/cpu/kernels.h"
#include "ops/logit_scan.h"

namespace coppice::ops::COPPICE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kVectors = 4;  // 6 rows x 4 vectors of sums + 4 of weights: 28 of 32 registers
#elif defined(__AVX__)
constexpr int kLanes = 8, kVectors = 2;  // 6 x 2 + 2 + 1: 15 of 16
#else
constexpr int kLanes = 4, kVectors = 2;
#endif
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr bool kVnni = true;
#else
constexpr bool kVnni = false;
#endif
constexpr int kMaxRows = 6;
constexpr int kPassCols = kLanes * kVectors;
static_assert(kPanelCols % kPassCols == 0);

using V = Vectors<kLanes>;
using F32 = V::F32;
using U32 = V::U32;
using I32 = V::I32;
using I16 = V::I16;
typedef uint32_t Word __attribute__((aligned(2), may_alias));

// All lanes folded with `fold`, in each of them.
template <class Vector, class Fold>
[[gnu::always_inline]] inline Vector FoldLanes(Vector x, Fold fold) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) x = fold(x, __builtin_shuffle(x, V::LaneNumbers() ^ half));
  return x;
}

// ------------------------------------------------------------------------------------------------------- matrix product panels

// One step along k: kDepth elements of x times a strip of the panel, which holds kDepth elements of each column together.
struct StepF32 {
  using Element = float;
  static constexpr int kDepth = 1;
  using Strip = F32;
  static Strip LoadStrip(const float* p) { return V::Load(p); }
  static F32 MultiplyAdd(const float* x, Strip w, F32 sum) { return *x * w + sum; }
};

#if defined(__AVX512BF16__)
struct StepBF16 {
  using Element = BF16;
  static constexpr int kDepth = 2;
  using Strip = __m512bh;
  static Strip LoadStrip(const BF16* p) { return V::LoadAs<Strip>(p); }
  static F32 MultiplyAdd(const BF16* x, Strip w, F32 sum) {
    const auto pair = _mm512_set1_epi32(static_cast<int>(*reinterpret_cast<const Word*>(x)));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<Strip>(pair), w);
  }
};
#endif

// Each step of a product asks for some of what lies ahead: a part of a line where steps are many, so for most lines more than once.
struct AheadOfSteps {
  // `steps`: those of the whole panel.
  [[gnu::always_inline]] AheadOfSteps(const Ahead& ahead, int64_t steps)
      : at(reinterpret_cast<const char*>(ahead.from)), bytes((ahead.bytes + steps - 1) / steps) {}
  [[gnu::always_inline]] void Step() {
    for (int64_t line = 0; line < bytes; line += kCacheLine) __builtin_prefetch(at + line, /*write=*/0, kSecondLevel);
    at += bytes;
  }
  const char* at;
  int64_t bytes;  // a step
};

template <class Step, int kRows>
void PanelRows(const typename Step::Element* x, int64_t x_stride, const typename Step::Element* panel, int64_t k, float* tile,
               int64_t tile_stride, AheadOfSteps& ahead) {
  AheadOfSteps next = ahead;
  for (int64_t col = 0; col < kPanelCols; col += kPassCols) {
    F32 sum[kRows][kVectors] = {};
    const typename Step::Element* strip = panel + col * Step::kDepth;
    for (int64_t i = 0; i < k; i += Step::kDepth, strip += kPanelCols * Step::kDepth) {
      next.Step();
      typename Step::Strip w[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) w[v] = Step::LoadStrip(strip + v * kLanes * Step::kDepth);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Step::MultiplyAdd(x + r * x_stride + i, w[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) V::Store(tile + r * tile_stride + col + v * kLanes, sum[r][v]);
    }
  }
  ahead = next;
}

// Rows of the next register tile, of `left`: equal parts, since a tile of few rows loads as many weights as one of `most`.
[[gnu::always_inline]] inline int64_t NextRows(int64_t left, int64_t most) {
  const int64_t tiles = (left + most - 1) / most;
  return (left + tiles - 1) / tiles;
}

template <class Step>
void Panel(const typename Step::Element* x, int64_t x_stride, int64_t rows, const typename Step::Element* panel, int64_t k,
           float* tile, int64_t tile_stride, Ahead ahead) {
  using Fn =
      void (*)(const typename Step::Element*, int64_t, const typename Step::Element*, int64_t, float*, int64_t, AheadOfSteps&);
  static constexpr Fn kByRows[kMaxRows + 1] = {
      nullptr,           PanelRows<Step, 1>, PanelRows<Step, 2>, PanelRows<Step, 3>, PanelRows<Step, 4>, PanelRows<Step, 5>,
      PanelRows<Step, 6>};
  AheadOfSteps next(ahead, (rows + kMaxRows - 1) / kMaxRows * (kPanelCols / kPassCols) * (k / Step::kDepth));
  for (int64_t r = 0, count = 0; r < rows; r += count) {
    count = NextRows(rows - r, kMaxRows);
    kByRows[count](x + r * x_stride, x_stride, panel, k, tile + r * tile_stride, tile_stride, next);
  }
}

#if defined(__AVX512BF16__)
constexpr auto kPanelBf16 = Panel<StepBF16>;
#else
// bf16 without an instruction for its pairs: f32 multiply-adds. x is widened once for all columns, kWidenedInputs inputs at a time,
// so that a broadcast is a load: from a general register it would take the vector ports that multiply.
constexpr int64_t kWidenedInputs = 512;
#if defined(__AVX512F__)
constexpr int kWidenedRows = 12;
// Columns of a pass, in vectors: 12 rows x 2 sums, 2 + 2 weights, 1 of x are 29 of 32 registers, and 5 x 4, 4 + 4, 1 likewise.
constexpr int WidenedVectors(int rows) { return rows > 5 ? 2 : 4; }
#else
constexpr int kWidenedRows = 5;
constexpr int WidenedVectors(int) { return 2; }  // 5 x 2 sums, 2 + 2 weights, 1 of x: 15 of 16
#endif

// tile (+)= x times WidenedVectors vectors of columns over k inputs; sums begin at 0 where `first`, else at those of the tile.
template <int kRows>
void WidenedPass(const float* x, const BF16* strip, int64_t k, bool first, float* tile, int64_t tile_stride, AheadOfSteps& ahead) {
  AheadOfSteps next = ahead;
  constexpr int kCols = WidenedVectors(kRows);
  F32 sum[kRows][kCols] = {};
  if (!first) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kCols; ++v) sum[r][v] = V::Load(tile + r * tile_stride + v * kLanes);
    }
  }
  for (int64_t i = 0; i < k; i += 2, strip += 2 * kPanelCols) {
    next.Step();
    U32 pairs[kCols];
#pragma GCC unroll 4
    for (int v = 0; v < kCols; ++v) pairs[v] = V::LoadAs<U32>(strip + 2 * v * kLanes);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      F32 w[kCols];
#pragma GCC unroll 4
      for (int v = 0; v < kCols; ++v) w[v] = half == 0 ? V::Even(pairs[v]) : V::Odd(pairs[v]);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const F32 both = V::Set1(x[r * kWidenedInputs + i + half]);
#pragma GCC unroll 4
        for (int v = 0; v < kCols; ++v) sum[r][v] = V::Fma(both, w[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kCols; ++v) V::Store(tile + r * tile_stride + v * kLanes, sum[r][v]);
  }
  ahead = next;
}

template <int... kRows>
struct WidenedPasses {
  using Pass = void (*)(const float*, const BF16*, int64_t, bool, float*, int64_t, AheadOfSteps&);
  static constexpr Pass kByRows[] = {nullptr, WidenedPass<kRows>...};
};
#if defined(__AVX512F__)
using PassesOfRows = WidenedPasses<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#else
using PassesOfRows = WidenedPasses<1, 2, 3, 4, 5>;
#endif

void PanelWidened(const BF16* x, int64_t x_stride, int64_t rows, const BF16* panel, int64_t k, float* tile, int64_t tile_stride,
                  Ahead ahead) {
  alignas(64) float widened[kWidenedRows * kWidenedInputs];
  const int64_t tiles = (rows + kWidenedRows - 1) / kWidenedRows;
  const int64_t passes = tiles * kPanelCols / (WidenedVectors(static_cast<int>(NextRows(rows, kWidenedRows))) * kLanes);
  AheadOfSteps next(ahead, passes * k / 2);
  for (int64_t begin = 0; begin < k; begin += kWidenedInputs) {
    const int64_t inputs = k - begin < kWidenedInputs ? k - begin : kWidenedInputs;
    for (int64_t row = 0, count = 0; row < rows; row += count) {
      count = NextRows(rows - row, kWidenedRows);
      for (int64_t r = 0; r < count; ++r) {
        const BF16* from = x + (row + r) * x_stride + begin;
        float* to = widened + r * kWidenedInputs;
        int64_t i = 0;
        for (; i + kLanes <= inputs; i += kLanes) V::Store(to + i, V::Widen(from + i));
        for (; i < inputs; ++i) to[i] = __builtin_bit_cast(float, static_cast<uint32_t>(from[i].bits) << 16);
      }
      for (int64_t col = 0; col < kPanelCols; col += WidenedVectors(static_cast<int>(count)) * kLanes) {
        PassesOfRows::kByRows[count](widened, panel + begin * kPanelCols + 2 * col, inputs, begin == 0,
                                     tile + row * tile_stride + col, tile_stride, next);
      }
    }
  }
}
constexpr auto kPanelBf16 = PanelWidened;
#endif

// --------------------------------------------------------------------------------------------------------------- coded weights

[[gnu::always_inline]] inline F32 LoadF16(const std::byte* p) { return V::Widen(reinterpret_cast<const F16*>(p)); }

#if defined(__AVX2__)
// Pairs of consecutive inputs in one word of codes (kernels.h has the order).
template <int kBits>
inline U32 Pair(U32 word, int t) {
  if constexpr (kBits == 4) return (word >> (4 * t)) & 0x000f000fu;
  const I16 halves = reinterpret_cast<I16>(word);
  return reinterpret_cast<U32>((t == 0 ? halves << 8 : halves) >> 8);
}

template <int kBits, int kRows>
void CodedRows(const CodedInput& x, int64_t first_row, const std::byte* panel, int64_t ahead, int64_t k, float* tile,
               int64_t tile_stride) {
  constexpr int kPairs = 16 / kBits, kWords = kCodeBlock / (2 * kPairs), kStrips = 2;
  const int64_t blocks = k / kCodeBlock;
  for (int64_t col = 0; col < kPanelCols; col += kStrips * kLanes) {
    const int64_t in_strip = col % kStripCols;
    const std::byte* block = panel + col / kStripCols * blocks * CodedBlockBytes(kBits);
    F32 sum[kRows][kStrips] = {};
    for (int64_t b = 0; b < blocks; ++b, block += CodedBlockBytes(kBits)) {
      // Weights come from memory once a step.
      for (int line = 0; line < CodedBlockBytes(kBits) * kStrips * kLanes / kStripCols; line += kCacheLine) {
        __builtin_prefetch(block + ahead + line, /*write=*/0, kSecondLevel);
      }
      I32 block_sum[kRows][kStrips] = {};
#pragma GCC unroll 8
      for (int j = 0; j < kWords; ++j) {
        U32 word[kStrips];
#pragma GCC unroll 2
        for (int v = 0; v < kStrips; ++v) {
          word[v] = V::LoadAs<U32>(block + 4 * (j * kStripCols + in_strip + v * kLanes));
        }
#pragma GCC unroll 4
        for (int t = 0; t < kPairs; ++t) {
#pragma GCC unroll 2
          for (int v = 0; v < kStrips; ++v) {
            const U32 pair = Pair<kBits>(word[v], t);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
              const int16_t* at = x.codes + (first_row + r) * k + b * kCodeBlock + (j * kPairs + t) * 2;
              const U32 both = U32{} + *reinterpret_cast<const Word*>(at);
              block_sum[r][v] = V::AddPairs<kVnni>(block_sum[r][v], pair, both);
            }
          }
        }
      }
      const std::byte* scales = block + kStripCols * kCodeBlock * kBits / 8 + 2 * in_strip;
#pragma GCC unroll 2
      for (int v = 0; v < kStrips; ++v) {
        const F32 scale = LoadF16(scales + 2 * v * kLanes), minimum = LoadF16(scales + 2 * (kStripCols + v * kLanes));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = (first_row + r) * blocks + b;
          sum[r][v] += __builtin_convertvector(block_sum[r][v], F32) * x.scales[at] * scale + minimum * x.sums[at];
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kStrips; ++v) V::Store(tile + r * tile_stride + col + v * kLanes, sum[r][v]);
    }
  }
}

template <int kBits>
void PanelCoded(const CodedInput& x, int64_t rows, const std::byte* panel, int64_t ahead, int64_t k, float* tile,
                int64_t tile_stride) {
  using Fn = void (*)(const CodedInput&, int64_t, const std::byte*, int64_t, int64_t, float*, int64_t);
#if defined(__AVX512F__)
  static constexpr Fn kByRows[] = {nullptr, CodedRows<kBits, 1>, CodedRows<kBits, 2>, CodedRows<kBits, 3>, CodedRows<kBits, 4>};
#else  // 16 registers
  static constexpr Fn kByRows[] = {nullptr, CodedRows<kBits, 1>, CodedRows<kBits, 2>};
#endif
  constexpr int64_t kMost = sizeof(kByRows) / sizeof(Fn) - 1;
  for (int64_t r = 0; r < rows; r += kMost) {
    kByRows[rows - r < kMost ? rows - r : kMost](x, r, panel, ahead, k, tile + r * tile_stride, tile_stride);
  }
}

void CodeInput(const BF16* x, int64_t k, int16_t* codes, float* scales, float* sums) {
  for (int64_t b = 0; b < k / kCodeBlock; ++b, x += kCodeBlock, codes += kCodeBlock) {
    float values[kCodeBlock], largest = 0;
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      values[i] = __builtin_bit_cast(float, static_cast<uint32_t>(x[i].bits) << 16);
      const float magnitude = __builtin_fabsf(values[i]);
      largest = magnitude > largest ? magnitude : largest;
    }
    // NaN and infinity in the input must come out as NaN, as in the other kernels; a tiny block may lose its last bits.
    float check = 0;
    for (int64_t i = 0; i < kCodeBlock; ++i) check += values[i] * 0.0f;
    const float scale = largest / 32767.0f, inverse = scale > 1e-35f && check == 0 ? 1.0f / scale : 0.0f;
    int32_t sum = 0;
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
      const int32_t code = __builtin_bit_cast(int32_t, values[i] * inverse + kRound) - __builtin_bit_cast(int32_t, kRound);
      codes[i] = static_cast<int16_t>(inverse == 0 ? 0 : code);
      sum += codes[i];
    }
    scales[b] = scale + check;
    sums[b] = static_cast<float>(sum) * scales[b];
  }
}
constexpr auto kCodeInput = CodeInput;
constexpr auto kPanelCoded4 = PanelCoded<4>;
constexpr auto kPanelCoded8 = PanelCoded<8>;
#else
constexpr decltype(Kernels::code_input) kCodeInput = nullptr;
constexpr decltype(Kernels::panel_coded4) kPanelCoded4 = nullptr;
constexpr decltype(Kernels::panel_coded8) kPanelCoded8 = nullptr;
#endif

// ------------------------------------------------------------------------------------------------------------ element by element

inline uint16_t RoundToBF16(float value) {  // to nearest even; NaN stays NaN
  const uint32_t u = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// y[i] = f(i) for i < n, in either dtype.
template <class F>
inline void Map(int64_t n, DType dtype, void* y, F f) {
  if (dtype == DType::kF32) {
    float* out = static_cast<float*>(y);
    for (int64_t i = 0; i < n; ++i) out[i] = f(i);
  } else {
    uint16_t* out = static_cast<uint16_t*>(y);
    for (int64_t i = 0; i < n; ++i) out[i] = RoundToBF16(f(i));
  }
}

// exp(x) within 2 ulp for |x| <= 87; saturates beyond. 2^n * p(r) with r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2].
inline float Exp(float x) {
  x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts: the first product is exact
  float p = 1.98756915e-4f;
  p = p * r + 1.39819995e-3f;
  p = p * r + 8.33345190e-3f;
  p = p * r + 4.16657959e-2f;
  p = p * r + 1.66666655e-1f;
  p = p * r + 5.00000012e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (__builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, kRound) + 127u) << 23;
  return p * __builtin_bit_cast(float, exponent);
}

void Convert(const float* x, int64_t n, DType dtype, void* y) {
  Map(n, dtype, y, [x](int64_t i) { return x[i]; });
}

void Add(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

constexpr int kAtOnce = 4;  // vectors whose chains of dependent instructions run side by side: one alone waits for itself

// Exp of each lane.
inline void ExpEach(F32 (&x)[kAtOnce]) {
  constexpr float kRound = 12582912.0f;
  F32 shifted[kAtOnce], p[kAtOnce];
#pragma GCC unroll 4
  for (int v = 0; v < kAtOnce; ++v) {
    x[v] = V::Min(V::Set1(87.0f), V::Max(V::Set1(-87.0f), x[v]));  // NaN stays NaN
    shifted[v] = x[v] * 1.44269504f + kRound;
  }
#pragma GCC unroll 4
  for (int v = 0; v < kAtOnce; ++v) {
    const F32 n = shifted[v] - kRound;
    x[v] = (x[v] - n * 0.693145752f) - n * 1.42860677e-6f;
    p[v] = F32{} + 1.98756915e-4f;
  }
#pragma GCC unroll 5
  for (const float c : {1.39819995e-3f, 8.33345190e-3f, 4.16657959e-2f, 1.66666655e-1f, 5.00000012e-1f}) {
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v) p[v] = p[v] * x[v] + c;
  }
#pragma GCC unroll 4
  for (int v = 0; v < kAtOnce; ++v) {
    p[v] = p[v] * x[v] * x[v] + x[v] + 1.0f;
    const U32 exponent = (reinterpret_cast<U32>(shifted[v]) - __builtin_bit_cast(uint32_t, kRound) + 127u) << 23;
    x[v] = p[v] * reinterpret_cast<F32>(exponent);
  }
}

struct SiluSlope {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};
struct GeluTanhSlope {
  template <class T>
  T operator()(T x) const {
    constexpr float kTwiceRootTwoOverPi = 1.59576912f;
    return kTwiceRootTwoOverPi * (x + 0.044715f * x * x * x);
  }
};

// x / (1 + exp(-slope(x))); slope takes elements and vectors.
template <class Slope>
struct Logistic {
  static constexpr bool kHasVectors = true;
  Slope slope;
  float operator()(float x) const { return x / (1.0f + Exp(-slope(x))); }
  void Each(F32 (&x)[kAtOnce]) const {
    F32 e[kAtOnce];
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v) e[v] = -slope(x[v]);
    ExpEach(e);
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v) x[v] = x[v] / (1.0f + e[v]);
  }
};
struct ErfGelu {
  static constexpr bool kHasVectors = false;
  float operator()(float x) const { return 0.5f * x * (1.0f + __builtin_erff(x * 0.707106781f)); }
};

// Calls body with the activation, so that each has a loop of its own.
template <class Body>
inline void WithActivation(Activation activation, Body body) {
  switch (activation) {
    case Activation::kSilu: return body(Logistic<SiluSlope>{});
    case Activation::kGeluTanh: return body(Logistic<GeluTanhSlope>{});
    case Activation::kGelu: return body(ErfGelu{});
  }
}

// y[i] = times(act(x[i]), i); times takes elements and, with the index of their first one, vectors.
template <class Act, class Times>
inline void MapActivation(Act act, const float* x, int64_t n, DType dtype, void* y, Times times) {
  int64_t i = 0;
  if constexpr (Act::kHasVectors) {
    for (; i + kAtOnce * kLanes <= n; i += kAtOnce * kLanes) {
      F32 values[kAtOnce];
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) values[v] = V::Load(x + i + v * kLanes);
      act.Each(values);
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) {
        const int64_t at = i + v * kLanes;
        const F32 out = times(values[v], at);
        if (dtype == DType::kF32) {
          V::Store(static_cast<float*>(y) + at, out);
        } else {
          V::StoreBf16(static_cast<uint16_t*>(y) + at, out);
        }
      }
    }
  }
  Map(n - i, dtype, static_cast<char*>(y) + i * static_cast<int64_t>(SizeOf(dtype)),
      [=](int64_t j) { return times(act(x[i + j]), i + j); });
}

void Activate(Activation activation, const float* x, int64_t n, DType dtype, void* y) {
  WithActivation(activation, [=](auto act) { MapActivation(act, x, n, dtype, y, [](auto value, int64_t) { return value; }); });
}

struct TimesUp {
  const float* up;
  float operator()(float value, int64_t i) const { return value * up[i]; }
  F32 operator()(F32 values, int64_t i) const { return values * V::Load(up + i); }
};
void Gated(Activation activation, const float* gate, const float* up, int64_t n, DType dtype, void* y) {
  WithActivation(activation, [=](auto act) { MapActivation(act, gate, n, dtype, y, TimesUp{up}); });
}

inline float SumOf(F32 lanes) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

// 1 / sqrt(mean((x - mean)^2) + eps).
inline float InverseDeviation(const float* x, int64_t n, float mean, float eps) {
  F32 squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32 v = V::Load(x + i) - mean;
    squares = v * v + squares;
  }
  float sum = SumOf(squares);
  for (; i < n; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
}

inline float Mean(const float* x, int64_t n) {
  F32 sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += V::Load(x + i);
  float sum = SumOf(sums);
  for (; i < n; ++i) sum += x[i];
  return sum / static_cast<float>(n);
}

// Calls body with the norm of an element as a function of its index.
template <class Body>
inline void WithRmsNorm(const float* x, const float* weight, int64_t n, float eps, Body body) {
  const float scale = InverseDeviation(x, n, 0.0f, eps);
  body([=](int64_t i) { return x[i] * scale * weight[i]; });
}
template <class Body>
inline void WithLayerNorm(const float* x, const float* weight, const float* bias, int64_t n, float eps, Body body) {
  const float mean = Mean(x, n), scale = InverseDeviation(x, n, mean, eps);
  if (bias == nullptr) {
    body([=](int64_t i) { return (x[i] - mean) * scale * weight[i]; });
  } else {
    body([=](int64_t i) { return (x[i] - mean) * scale * weight[i] + bias[i]; });
  }
}

void RmsNorm(const float* x, const float* weight, const float*, int64_t n, float eps, DType dtype, void* y) {
  WithRmsNorm(x, weight, n, eps, [=](auto norm) { Map(n, dtype, y, norm); });
}
void LayerNorm(const float* x, const float* weight, const float* bias, int64_t n, float eps, DType dtype, void* y) {
  WithLayerNorm(x, weight, bias, n, eps, [=](auto norm) { Map(n, dtype, y, norm); });
}
void AddRmsNorm(const float* x, const float* weight, const float*, int64_t n, float eps, float* y) {
  WithRmsNorm(x, weight, n, eps, [=](auto norm) { Map(n, DType::kF32, y, [=](int64_t i) { return y[i] + norm(i); }); });
}
void AddLayerNorm(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* y) {
  WithLayerNorm(x, weight, bias, n, eps, [=](auto norm) { Map(n, DType::kF32, y, [=](int64_t i) { return y[i] + norm(i); }); });
}

void Rotate(const float* x, const float* cos, const float* sin, int64_t half, DType dtype, void* y) {
  const float* low = x;
  const float* high = x + half;
  Map(half, dtype, y, [=](int64_t i) { return low[i] * cos[i] - high[i] * sin[i]; });
  Map(half, dtype, static_cast<char*>(y) + half * static_cast<int64_t>(SizeOf(dtype)),
      [=](int64_t i) { return high[i] * cos[i] + low[i] * sin[i]; });
}

void RotatePairs(const float* x, const float* cos, const float* sin, int64_t half, DType dtype, void* y) {
  Map(2 * half, dtype, y, [=](int64_t i) {
    const float other = x[i ^ 1];
    return x[i] * cos[i / 2] + (i % 2 == 0 ? -other : other) * sin[i / 2];
  });
}

// ------------------------------------------------------------------------------------------------------------ passes over logits

float BlockMaximum(const float* x, int64_t n) {
  constexpr float kLowest = -__FLT_MAX__;
  F32 best[kAtOnce];
  for (F32& lanes : best) lanes = V::Set1(kLowest);
  int64_t i = 0;
  for (; i + kAtOnce * kLanes <= n; i += kAtOnce * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v) best[v] = V::Max(best[v], V::Load(x + i + v * kLanes));
  }
  float result = FoldLanes(V::Max(V::Max(best[0], best[1]), V::Max(best[2], best[3])), V::Max)[0];
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

float BlockMaxima(const float* logits, int64_t count, float* maxima) {
  float result = -__FLT_MAX__;
  for (int64_t begin = 0; begin < count; begin += kLogitBlock) {
    const float block = BlockMaximum(logits + begin, count - begin < kLogitBlock ? count - begin : kLogitBlock);
    *maxima++ = block;
    result = block > result ? block : result;
  }
  return result;
}

double BlockExps(const float* logits, int64_t count, float max, float inverse_temperature, float* exps, float* sums) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kLogitBlock) {
    const int64_t end = count - begin < kLogitBlock ? count : begin + kLogitBlock;
    F32 sum[kAtOnce] = {};
    int64_t i = begin;
    for (; i + kAtOnce * kLanes <= end; i += kAtOnce * kLanes) {
      F32 e[kAtOnce];
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) e[v] = (V::Load(logits + i + v * kLanes) - max) * inverse_temperature;
      ExpEach(e);
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) {
        sum[v] += e[v];
        if (exps != nullptr) V::Store(exps + i + v * kLanes, e[v]);
      }
    }
    float block = FoldLanes((sum[0] + sum[1]) + (sum[2] + sum[3]), [](F32 a, F32 b) { return a + b; })[0];
    for (; i < end; ++i) {
      const float e = Exp((logits[i] - max) * inverse_temperature);
      if (exps != nullptr) exps[i] = e;
      block += e;
    }
    if (sums != nullptr) *sums++ = block;
    total += block;
  }
  return total;
}

}  // namespace

extern const Kernels kKernels;
#if defined(__AVX512BF16__)
constexpr bool kMultipliesBf16 = true;
#else
constexpr bool kMultipliesBf16 = false;
#endif

const Kernels kKernels = {.isa = COPPICE_ISA_NAME,
                          .multiplies_bf16 = kMultipliesBf16,
                          .panel_f32 = Panel<StepF32>,
                          .panel_bf16 = kPanelBf16,
                          .code_input = kCodeInput,
                          .panel_coded4 = kPanelCoded4,
                          .panel_coded8 = kPanelCoded8,
                          .quantized = &kQuantizedKernels,
                          .convert = Convert,
                          .add = Add,
                          .activate = Activate,
                          .gated = Gated,
                          .rms_norm = RmsNorm,
                          .layer_norm = LayerNorm,
                          .add_rms_norm = AddRmsNorm,
                          .add_layer_norm = AddLayerNorm,
                          .rotate = Rotate,
                          .rotate_pairs = RotatePairs,
                          .block_maxima = BlockMaxima,
                          .block_exps = BlockExps};

}  // namespace coppice::ops::COPPICE_ISA
