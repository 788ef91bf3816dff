// Bodies of quantized_kernels.h; included by each kernels_<isa>.cc behind kernels-inl.h, whose vector types it uses and whose rules
// hold here.
// Layer: ops, private.

#include "ops/cpu/quantized_kernels.h"

namespace coppice::ops::COPPICE_ISA {
namespace {

typedef uint8_t QuantU8 __attribute__((vector_size(kLanes)));
typedef int8_t QuantI8 __attribute__((vector_size(kLanes)));
typedef uint8_t QuantBytes __attribute__((vector_size(4 * kLanes)));

constexpr int kStripVectors = kQuantStripCols / kLanes;
constexpr int kTileRows = 6, kTileVectors = 2;  // 12 sums, 2 weights, 1 input, 1 product: 16 registers
constexpr int kDirectVectors = kLanes == 16 ? 2 : 4;
static_assert(kStripVectors % kTileVectors == 0 && kStripVectors % kDirectVectors == 0);

// The two products of an unsigned and a signed byte in each 16-bit lane, added; saturates.
[[gnu::always_inline]] inline I16 BytePairs(U32 weights, U32 x) {
#if defined(__AVX512F__)
  return reinterpret_cast<I16>(_mm512_maddubs_epi16(reinterpret_cast<__m512i>(weights), reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<I16>(_mm256_maddubs_epi16(reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(x)));
#else
  return reinterpret_cast<I16>(_mm_maddubs_epi16(reinterpret_cast<__m128i>(weights), reinterpret_cast<__m128i>(x)));
#endif
}

template <class Bytes>  // QuantU8 or QuantI8
[[gnu::always_inline]] inline F32 LoadFactors(const std::byte* p) {
  return __builtin_convertvector(V::LoadAs<Bytes>(p), F32);
}

// ------------------------------------------------------------------------------------------------------------- weights of a block

constexpr uint32_t Repeat(uint32_t byte) { return byte * 0x01010101u; }

// Moves bits from place `from` to place `to` of each word.
template <int from, int to>
inline U32 Move(U32 words) {
  if constexpr (from > to) return words >> (from - to);
  return words << (to - from);
}

// Operand j of kLanes columns from `column` on: four unsigned codes a lane (QuantLayout).
template <int kBits, int j>
[[gnu::always_inline]] inline U32 Operand(const std::byte* block, int64_t column) {
  const auto word = [=](int i) { return V::LoadAs<U32>(block + 4 * (i * kQuantStripCols + column)); };
  if constexpr (kBits == 8) return word(j);
  U32 codes = (word(j / 2) >> (j % 2 * 4)) & Repeat(0x0f);
  if constexpr (kBits == 5) codes |= Move<j, 4>(word(4)) & Repeat(0x10);
  if constexpr (kBits == 6) codes |= Move<j % 4 * 2, 4>(word(4 + j / 4)) & Repeat(0x30);
  return codes;
}

template <BlockFormat format>
struct BlockScales {
  static constexpr QuantLayout kLayout = Layout(format);
  static constexpr int kHalves = kLayout.scales == ScaleKind::kSuperSixteens ? 2 : 1;  // scales of a block

  const std::byte* header;  // of its superblock
  const std::byte* scales;

  static BlockScales Of(const std::byte* strip, int64_t b) {
    return {strip + kLayout.HeaderOffset(b), strip + kLayout.BlockOffset(b) + kLayout.code_bytes()};
  }
  F32 Scale(int half, int64_t column) const {
    if constexpr (!kLayout.has_superblocks()) return LoadF16(scales + 2 * column);
    const F32 d = LoadF16(header + 2 * column);
    if constexpr (kHalves == 2) return d * LoadFactors<QuantI8>(scales + half * kQuantStripCols + column);
    return d * LoadFactors<QuantU8>(scales + column);
  }
  F32 Minimum(int64_t column) const {
    if constexpr (!kLayout.has_superblocks()) return LoadF16(scales + 2 * (kQuantStripCols + column));
    return -(LoadF16(header + 2 * (kQuantStripCols + column)) * LoadFactors<QuantU8>(scales + kQuantStripCols + column));
  }
};

// The first term of a block's integer sums: minus the codes' zero times the sum of the inputs' codes.
template <bool kHasMinimum>
[[gnu::always_inline]] inline I32 ZeroTerm(int32_t zero, const int32_t* negated) {
  if constexpr (kHasMinimum) return I32{};  // such codes have no zero
  return I32{} + zero * *negated;
}

[[gnu::always_inline]] inline U32 Broadcast(const void* word) { return U32{} + *static_cast<const Word*>(word); }

// ------------------------------------------------------------------------------------------------ one row: weights straight from
// memory

// sum += operands [j, kEnd) of a block times a row's.
template <int kBits, int j, int kEnd>
[[gnu::always_inline]] inline void AddOperands(const int16_t* x, const std::byte* block, int64_t column,
                                               I32 (&sum)[kDirectVectors]) {
  if constexpr (j < kEnd) {
    const U32 x_even = Broadcast(x + 4 * j), x_odd = Broadcast(x + 4 * j + 2);
#pragma GCC unroll 4
    for (int v = 0; v < kDirectVectors; ++v) {
      const U32 codes = Operand<kBits, j>(block, column + v * kLanes);
      sum[v] = V::AddPairs<kVnni>(sum[v], codes & 0x00ff00ffu, x_even);
      sum[v] = V::AddPairs<kVnni>(sum[v], codes >> 8 & 0x00ff00ffu, x_odd);
    }
    AddOperands<kBits, j + 1, kEnd>(x, block, column, sum);
  }
}

// Half h of a block's operands (all, where a block has one scale), scaled and added to the totals.
template <BlockFormat format, int h>
[[gnu::always_inline]] inline void AddHalf(const QuantizedInput& x, const std::byte* block, const BlockScales<format>& scales,
                                           int64_t b, int64_t column, F32 (&total)[kDirectVectors]) {
  constexpr int kHalves = BlockScales<format>::kHalves, kOperands = 8 / kHalves;
  constexpr QuantLayout kLayout = Layout(format);
  I32 sum[kDirectVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kDirectVectors; ++v) {
    sum[v] = ZeroTerm<kLayout.has_minimum()>(kLayout.zero, kHalves == 2 ? x.negated_halves + 2 * b + h : x.negated + b);
  }
  AddOperands<kLayout.bits, h * kOperands, (h + 1) * kOperands>(x.wide + b * kQuantBlock, block, column, sum);
#pragma GCC unroll 4
  for (int v = 0; v < kDirectVectors; ++v) {
    const F32 scaled = __builtin_convertvector(sum[v], F32) * x.scales[b];
    total[v] = scaled * scales.Scale(h, column + v * kLanes) + total[v];
  }
}

// Weights come from memory once a step.
[[gnu::always_inline]] inline void FetchBlock(const std::byte* block, const QuantLayout& layout) {
  for (int64_t byte = 0; byte < layout.block_bytes(); byte += kCacheLine) {
    __builtin_prefetch(block + byte, /*write=*/0, kSecondLevel);
  }
}

template <BlockFormat format>
void MultiplyRow(const QuantizedInput& x, const std::byte* strip, int64_t ahead, int64_t k, float* tile) {
  constexpr QuantLayout kLayout = Layout(format);
  for (int64_t column = 0; column < kQuantStripCols; column += kDirectVectors * kLanes) {
    F32 total[kDirectVectors] = {};
    for (int64_t b = 0; b < k / kQuantBlock; ++b) {
      const std::byte* block = strip + kLayout.BlockOffset(b);
      if (column == 0) FetchBlock(block + ahead, kLayout);
      const auto scales = BlockScales<format>::Of(strip, b);
      AddHalf<format, 0>(x, block, scales, b, column, total);
      if constexpr (BlockScales<format>::kHalves == 2) AddHalf<format, 1>(x, block, scales, b, column, total);
      if constexpr (kLayout.has_minimum()) {
#pragma GCC unroll 4
        for (int v = 0; v < kDirectVectors; ++v) total[v] = scales.Minimum(column + v * kLanes) * x.sums[b] + total[v];
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kDirectVectors; ++v) V::Store(tile + column + v * kLanes, total[v]);
  }
}

// ------------------------------------------------------------------------------- more rows: weights unpacked once, then read from
// L1

constexpr int kChunkBlocks = 8;

// Blocks of a strip, ready to be multiplied: wide, two words of 16-bit codes an operand (bytes 0 and 2, then 1 and 3); narrow, one
// word of bytes.
template <InputPrecision precision>
struct UnpackedChunk {
  static constexpr int kWords = precision == InputPrecision::kWide ? 16 : 8;
  alignas(64) uint32_t codes[kChunkBlocks][kWords][kQuantStripCols];
  alignas(64) float scale[kChunkBlocks][2][kQuantStripCols];
  alignas(64) float minimum[kChunkBlocks][kQuantStripCols];
  alignas(64) float weight_sum[kChunkBlocks][kQuantStripCols];  // narrow: of scale * (code - zero)
};

// Sums of four operands' codes: below 8 bits as bytes, which hold 4 * 63, else as 16-bit integers.
struct CodeSum {
  U32 sums;

  template <int kBits>
  [[gnu::always_inline]] void Add(U32 operand) {
    if constexpr (kBits < 8) {
      sums = reinterpret_cast<U32>(reinterpret_cast<QuantBytes>(sums) + reinterpret_cast<QuantBytes>(operand));
    } else {
      sums = reinterpret_cast<U32>(reinterpret_cast<I16>(sums) + BytePairs(operand, U32{} + Repeat(1)));
    }
  }
  // Of each column.
  template <int kBits>
  [[gnu::always_inline]] I32 Columns() const {
    const U32 pairs = kBits < 8 ? reinterpret_cast<U32>(BytePairs(sums, U32{} + Repeat(1))) : sums;
    return V::AddPairs<kVnni>(I32{}, pairs, U32{} + 0x00010001u);
  }
};

template <BlockFormat format, InputPrecision precision, int j>
[[gnu::always_inline]] inline void UnpackOperands(const std::byte* block, int64_t column, uint32_t (*codes)[kQuantStripCols],
                                                  CodeSum (&sums)[2]) {
  if constexpr (j < 8) {
    const U32 operand = Operand<Layout(format).bits, j>(block, column);
    if constexpr (precision == InputPrecision::kWide) {
      V::StoreAs(&codes[2 * j][column], operand & 0x00ff00ffu);
      V::StoreAs(&codes[2 * j + 1][column], operand >> 8 & 0x00ff00ffu);
    } else {
      V::StoreAs(&codes[j][column], operand);
      sums[j / 4].template Add<Layout(format).bits>(operand);
    }
    UnpackOperands<format, precision, j + 1>(block, column, codes, sums);
  }
}

template <BlockFormat format, InputPrecision precision>
void Unpack(const std::byte* strip, int64_t ahead, int64_t first, int64_t count, UnpackedChunk<precision>& chunk) {
  using Scales = BlockScales<format>;
  constexpr QuantLayout kLayout = Layout(format);
  for (int64_t b = 0; b < count; ++b) {
    FetchBlock(strip + kLayout.BlockOffset(first + b) + ahead, kLayout);
    const Scales scales = Scales::Of(strip, first + b);
    for (int64_t column = 0; column < kQuantStripCols; column += kLanes) {
      CodeSum sums[2] = {};
      UnpackOperands<format, precision, 0>(strip + kLayout.BlockOffset(first + b), column, chunk.codes[b], sums);
      for (int h = 0; h < Scales::kHalves; ++h) V::Store(&chunk.scale[b][h][column], scales.Scale(h, column));
      if constexpr (kLayout.has_minimum()) V::Store(&chunk.minimum[b][column], scales.Minimum(column));
      if constexpr (precision == InputPrecision::kNarrow) {
        F32 weights = {};
        for (int h = 0; h < 2; ++h) {
          const I32 codes = sums[h].template Columns<kLayout.bits>() - 16 * kLayout.zero;
          weights = __builtin_convertvector(codes, F32) * V::Load(&chunk.scale[b][h * (Scales::kHalves - 1)][column]) + weights;
        }
        V::Store(&chunk.weight_sum[b][column], weights);
      }
    }
  }
}

// Properties of a format that the product of unpacked blocks depends on; formats of equal ones share its code.
struct TileKind {
  InputPrecision precision;
  int safe_operands;  // narrow: operands whose 16-bit sums cannot overflow
  int halves;         // scales of a block
  bool has_minimum;
};
// An operand adds two products of at most 15, 31 or 63 times 127 to each sum.
constexpr int SafeOperands(int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : 2; }
static_assert(8 * 2 * 15 * 127 <= 32767 && 4 * 2 * 31 * 127 <= 32767 && 2 * 2 * 63 * 127 <= 32767);

template <BlockFormat format, InputPrecision precision>
constexpr TileKind KindOf() {
  return {precision, precision == InputPrecision::kWide ? 0 : SafeOperands(Layout(format).bits), BlockScales<format>::kHalves,
          Layout(format).has_minimum()};
}

using TileSums = I32[kTileRows][kTileVectors];

template <int kOperands, int kRows>
[[gnu::always_inline]] inline void WideSums(const int16_t* x, int64_t k, const uint32_t* codes, TileSums& sum) {
#pragma GCC unroll 1
  for (int p = 0; p < 2 * kOperands; ++p, codes += kQuantStripCols) {
    U32 w[kTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) w[v] = V::LoadAs<U32>(codes + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const U32 pair = Broadcast(x + r * k + 2 * p);
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = V::AddPairs<kVnni>(sum[r][v], w[v], pair);
    }
  }
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
// sum + the four products of bytes in each 32-bit lane, unsigned ones of w and signed ones of x.
[[gnu::always_inline]] inline I32 AddBytes(I32 sum, U32 w, U32 x) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<I32>(
      _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x)));
#else
  return reinterpret_cast<I32>(
      _mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(w), reinterpret_cast<__m256i>(x)));
#endif
}

template <int kOperands, int kSafe, int kRows>
[[gnu::always_inline]] inline void NarrowSums(const int8_t* x, int64_t k, const uint32_t* codes, TileSums& sum) {
#pragma GCC unroll 1
  for (int j = 0; j < kOperands; ++j, codes += kQuantStripCols) {
    U32 w[kTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) w[v] = V::LoadAs<U32>(codes + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const U32 four = Broadcast(x + r * k + 4 * j);
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = AddBytes(sum[r][v], w[v], four);
    }
  }
}
#else
template <int kOperands, int kSafe, int kRows>
[[gnu::always_inline]] inline void NarrowSums(const int8_t* x, int64_t k, const uint32_t* codes, TileSums& sum) {
#pragma GCC unroll 1
  for (int first = 0; first < kOperands; first += kSafe) {
    I16 part[kRows][kTileVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kSafe; ++j, codes += kQuantStripCols) {
      U32 w[kTileVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) w[v] = V::LoadAs<U32>(codes + v * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const U32 four = Broadcast(x + r * k + 4 * (first + j));
#pragma GCC unroll 2
        for (int v = 0; v < kTileVectors; ++v) {
          part[r][v] = j == 0 ? BytePairs(w[v], four) : part[r][v] + BytePairs(w[v], four);
          asm("" : "+x"(part[r][v]));  // added here, not in another order that needs more registers
        }
      }
    }
    uint32_t pair_of_ones = 0x00010001u;
    asm("" : "+r"(pair_of_ones));  // made here: held through the loop above, it takes a sum's register
    const U32 ones = U32{} + pair_of_ones;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = V::AddPairs<kVnni>(sum[r][v], reinterpret_cast<U32>(part[r][v]), ones);
    }
  }
}
#endif

// total += what the integer sums of a block's half h stand for. Totals are no memory that a float could lie in, so that scales are
// loaded once.
template <TileKind kind, int kRows>
[[gnu::always_inline]] inline void ScaleSums(const QuantizedInput& x, const UnpackedChunk<kind.precision>& chunk, int64_t b, int h,
                                             int64_t column, int64_t at, int64_t blocks, const TileSums& sum,
                                             F32 (&total)[kRows][kTileVectors]) {
  constexpr bool kNarrow = kind.precision == InputPrecision::kNarrow;
  F32 scale[kTileVectors], minimum[kTileVectors], weights[kTileVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kTileVectors; ++v) {
    scale[v] = V::Load(&chunk.scale[b][h][column + v * kLanes]);
    if constexpr (kind.has_minimum) minimum[v] = V::Load(&chunk.minimum[b][column + v * kLanes]);
    if constexpr (kNarrow) weights[v] = V::Load(&chunk.weight_sum[b][column + v * kLanes]);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const int64_t i = r * blocks + at;
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) {
      total[r][v] = __builtin_convertvector(sum[r][v], F32) * x.scales[i] * scale[v] + total[r][v];
      if constexpr (kind.has_minimum) total[r][v] = minimum[v] * x.sums[i] + total[r][v];
      if constexpr (kNarrow) {
        if (h == 0) total[r][v] = weights[v] * x.middles[i] + total[r][v];
      }
    }
  }
}

// tile += x times the chunk, which holds blocks [first, first + count), for kRows rows and all columns.
template <TileKind kind, int kRows>
void MultiplyChunk(const QuantizedInput& x, const UnpackedChunk<kind.precision>& chunk, int32_t zero, int64_t first, int64_t count,
                   int64_t k, float* tile, int64_t tile_stride) {
  constexpr bool kNarrow = kind.precision == InputPrecision::kNarrow;
  constexpr int kOperands = 8 / kind.halves;
  const int64_t blocks = k / kQuantBlock;
  for (int64_t column = 0; column < kQuantStripCols; column += kTileVectors * kLanes) {
    F32 total[kRows][kTileVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) total[r][v] = V::Load(tile + r * tile_stride + column + v * kLanes);
    }
    for (int64_t b = 0; b < count; ++b) {
      const int64_t at = first + b;
#pragma GCC unroll 2
      for (int h = 0; h < kind.halves; ++h) {
        TileSums sum;
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          const int32_t* negated = kind.halves == 2 ? x.negated_halves + 2 * (r * blocks + at) + h : x.negated + r * blocks + at;
#pragma GCC unroll 2
          for (int v = 0; v < kTileVectors; ++v) sum[r][v] = ZeroTerm<kind.has_minimum>(zero, negated);
        }
        if constexpr (kNarrow) {
          NarrowSums<kOperands, kind.safe_operands, kRows>(x.narrow + at * kQuantBlock + 16 * h, k,
                                                           &chunk.codes[b][kOperands * h][column], sum);
        } else {
          WideSums<kOperands, kRows>(x.wide + at * kQuantBlock + 16 * h, k, &chunk.codes[b][2 * kOperands * h][column], sum);
        }
        ScaleSums<kind, kRows>(x, chunk, b, h, column, at, blocks, sum, total);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) V::Store(tile + r * tile_stride + column + v * kLanes, total[r][v]);
    }
  }
}

// All rows, in groups of kRows and then of fewer.
template <TileKind kind, int kRows>
inline void MultiplyRows(int64_t row, int64_t rows, const QuantizedInput& x, const UnpackedChunk<kind.precision>& chunk,
                         int32_t zero, int64_t first, int64_t count, int64_t k, float* tile, int64_t tile_stride) {
  for (; rows - row >= kRows; row += kRows) {
    MultiplyChunk<kind, kRows>(x.FromRow(row, k), chunk, zero, first, count, k, tile + row * tile_stride, tile_stride);
  }
  if constexpr (kRows > 1) {
    MultiplyRows<kind, kRows == 6 ? 4 : kRows / 2>(row, rows, x, chunk, zero, first, count, k, tile, tile_stride);
  }
}

template <BlockFormat format, InputPrecision precision>
void MultiplyUnpacked(const QuantizedInput& x, int64_t rows, const std::byte* strip, int64_t ahead, int64_t k, float* tile,
                      int64_t tile_stride) {
  static_assert(kTileRows == 6);
  UnpackedChunk<precision> chunk;
  const int64_t blocks = k / kQuantBlock;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < kQuantStripCols; c += kLanes) V::Store(tile + r * tile_stride + c, F32{});
  }
  for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
    const int64_t count = blocks - first < kChunkBlocks ? blocks - first : kChunkBlocks;
    Unpack<format, precision>(strip, ahead, first, count, chunk);
    MultiplyRows<KindOf<format, precision>(), kTileRows>(0, rows, x, chunk, Layout(format).zero, first, count, k, tile,
                                                         tile_stride);
  }
}

template <BlockFormat format>
void MultiplyWide(const QuantizedInput& x, int64_t rows, const std::byte* strip, int64_t ahead, int64_t k, float* tile,
                  int64_t tile_stride) {
  if (rows == 1) {
    MultiplyRow<format>(x, strip, ahead, k, tile);
  } else {
    MultiplyUnpacked<format, InputPrecision::kWide>(x, rows, strip, ahead, k, tile, tile_stride);
  }
}

template <BlockFormat format>
void MultiplyNarrow(const QuantizedInput& x, int64_t rows, const std::byte* strip, int64_t ahead, int64_t k, float* tile,
                    int64_t tile_stride) {
  MultiplyUnpacked<format, InputPrecision::kNarrow>(x, rows, strip, ahead, k, tile, tile_stride);
}

// ------------------------------------------------------------------------------------------------------------- inputs as integers

constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
constexpr int kBlockVectors = kQuantBlock / kLanes;

typedef int16_t QuantCodes16 __attribute__((vector_size(2 * kLanes)));

struct InputBlock {
  F32 values[kBlockVectors];
  F32 low, high, check;  // in all lanes; check: 0, or NaN if a value is not finite
};

[[gnu::always_inline]] inline InputBlock LoadBlock(const void* x, DType dtype, int64_t begin) {
  InputBlock block;
  if (dtype == DType::kF32) {
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) block.values[v] = V::Load(static_cast<const float*>(x) + begin + v * kLanes);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) block.values[v] = V::Widen(static_cast<const BF16*>(x) + begin + v * kLanes);
  }
  const auto least = [](F32 a, F32 b) { return a < b ? a : b; };
  const auto most = [](F32 a, F32 b) { return a > b ? a : b; };
  block.low = block.high = block.values[0];
  block.check = block.values[0] * 0.0f;
#pragma GCC unroll 8
  for (int v = 1; v < kBlockVectors; ++v) {
    block.low = least(block.values[v], block.low);
    block.high = most(block.values[v], block.high);
    block.check = block.values[v] * 0.0f + block.check;
  }
  block.low = FoldLanes(block.low, least);
  block.high = FoldLanes(block.high, most);
  block.check = FoldLanes(block.check, [](F32 a, F32 b) { return a + b; });
  return block;
}

// Codes of one block around `middle`; what else a QuantizedInput says of it. A block too small to divide by loses its last bits.
[[gnu::always_inline]] inline void CodeBlock(const InputBlock& block, float middle, float scale, int64_t b,
                                             I32 (&codes)[kBlockVectors], const QuantizedInput& out) {
  const float check = block.check[0], inverse = scale > 1e-35f && check == 0 ? 1.0f / scale : 0.0f;
#pragma GCC unroll 8
  for (int v = 0; v < kBlockVectors; ++v) {
    const F32 rounded = (block.values[v] - middle) * inverse + kRoundToInteger;
    codes[v] = reinterpret_cast<I32>(rounded) - __builtin_bit_cast(int32_t, kRoundToInteger);
    if (inverse == 0) codes[v] = I32{};  // of what is not finite, too
  }
  int32_t sums[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    I32 sum = codes[h * (kBlockVectors / 2)];
#pragma GCC unroll 4
    for (int v = 1; v < kBlockVectors / 2; ++v) sum += codes[h * (kBlockVectors / 2) + v];
    sums[h] = FoldLanes(sum, [](I32 x, I32 y) { return x + y; })[0];
    out.negated_halves[2 * b + h] = -sums[h];
  }
  out.negated[b] = -(sums[0] + sums[1]);
  out.scales[b] = scale + check;
  out.sums[b] = static_cast<float>(sums[0] + sums[1]) * out.scales[b] + 32 * middle;
}

void QuantizeWide(const void* x, DType dtype, int64_t k, const QuantizedInput& out) {
  const I32 lanes = V::LaneNumbers();
  const I32 order = (lanes & ~3) | (lanes & 1) << 1 | (lanes & 2) >> 1;  // inputs 0, 2, 1, 3 of each four
  for (int64_t b = 0; b < k / kQuantBlock; ++b) {
    const InputBlock block = LoadBlock(x, dtype, b * kQuantBlock);
    const float low = block.low[0], high = block.high[0], largest = -low > high ? -low : high;
    I32 codes[kBlockVectors];
    CodeBlock(block, 0.0f, largest / 32767.0f, b, codes, out);
    int16_t* to = out.wide + b * kQuantBlock;
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) {
      V::StoreAs(to + v * kLanes, __builtin_convertvector(__builtin_shuffle(codes[v], order), QuantCodes16));
    }
  }
}

// 32 codes as bytes.
[[gnu::always_inline]] inline void StoreBytes(const I32 (&codes)[kBlockVectors], int8_t* out) {
#if defined(__AVX512F__)
  for (int v = 0; v < kBlockVectors; ++v) {
    V::StoreAs(out + v * kLanes, __builtin_convertvector(codes[v], QuantI8));
  }
#else  // such a conversion would go through single elements: four vectors become one, whose bytes are then put in order
  QuantBytes order;
#pragma GCC unroll 32
  for (int i = 0; i < 4 * kLanes; ++i) order[i] = static_cast<uint8_t>(i % kLanes * 4 + i / kLanes);
#pragma GCC unroll 2
  for (int v = 0; v < kBlockVectors; v += 4) {
    const I32 words = (codes[v] & 0xff) | (codes[v + 1] & 0xff) << 8 | (codes[v + 2] & 0xff) << 16 | codes[v + 3] << 24;
    const QuantBytes bytes = __builtin_shuffle(reinterpret_cast<QuantBytes>(words), order);
    V::StoreAs(out + v * kLanes, bytes);
  }
#endif
}

void QuantizeNarrow(const void* x, DType dtype, int64_t k, const QuantizedInput& out) {
  for (int64_t b = 0; b < k / kQuantBlock; ++b) {
    const InputBlock block = LoadBlock(x, dtype, b * kQuantBlock);
    const float low = block.low[0], high = block.high[0], middle = block.check[0] == 0 ? 0.5f * low + 0.5f * high : 0.0f;
    I32 codes[kBlockVectors];
    CodeBlock(block, middle, (0.5f * high - 0.5f * low) / 127.0f, b, codes, out);
    out.middles[b] = middle;
    StoreBytes(codes, out.narrow + b * kQuantBlock);
  }
}

// Codes of 8 bits overflow 16-bit sums at once; other than with VPDPBUSD, bytes gain nothing there.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr auto kNarrowEight = MultiplyNarrow<BlockFormat::kQ8_0>;
#else
constexpr QuantizedKernels::Multiply kNarrowEight = nullptr;
#endif

}  // namespace

extern const QuantizedKernels kQuantizedKernels;
const QuantizedKernels kQuantizedKernels = {
    QuantizeWide,
    QuantizeNarrow,
    {MultiplyWide<BlockFormat::kQ4_0>, MultiplyWide<BlockFormat::kQ4_1>, MultiplyWide<BlockFormat::kQ5_0>,
     MultiplyWide<BlockFormat::kQ5_1>, MultiplyWide<BlockFormat::kQ8_0>, MultiplyWide<BlockFormat::kQ4_K>,
     MultiplyWide<BlockFormat::kQ5_K>, MultiplyWide<BlockFormat::kQ6_K>},
    {MultiplyNarrow<BlockFormat::kQ4_0>, MultiplyNarrow<BlockFormat::kQ4_1>, MultiplyNarrow<BlockFormat::kQ5_0>,
     MultiplyNarrow<BlockFormat::kQ5_1>, kNarrowEight, MultiplyNarrow<BlockFormat::kQ4_K>, MultiplyNarrow<BlockFormat::kQ5_K>,
     MultiplyNarrow<BlockFormat::kQ6_K>}};

}  // namespace coppice::ops::COPPICE_ISA
