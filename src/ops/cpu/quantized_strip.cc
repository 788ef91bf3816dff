#include "ops/cpu/quantized_strip.h"

#include <array>
#include <cstring>

#include "coppice/core/types.h"
#include "core/check.h"

namespace coppice::ops {
namespace {

const uint8_t* AsBytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

template <class T>
T LoadAs(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}
float LoadHalf(const std::byte* p) { return LoadAs<F16>(p).ToFloat(); }

using Codes = std::array<uint8_t, kQuantBlock>;

// Element j of a block of 32 is in the low nibble of byte j, element j + 16 in its high nibble; bit j of `fifth` is its fifth bit.
Codes NibbleCodes(const uint8_t* q, uint32_t fifth) {
  Codes codes;
  for (int j = 0; j < 16; ++j) {
    codes[j] = static_cast<uint8_t>((q[j] & 15u) | (fifth >> j & 1u) << 4);
    codes[j + 16] = static_cast<uint8_t>((q[j] >> 4) | (fifth >> (j + 16) & 1u) << 4);
  }
  return codes;
}

// Unsigned codes of block `sub` of a stored block (sub 0 where a stored block has 32 elements).
Codes StoredCodes(BlockFormat format, const std::byte* stored, int64_t sub) {
  Codes codes;
  switch (format) {
    case BlockFormat::kQ4_0: return NibbleCodes(AsBytes(stored + 2), 0);
    case BlockFormat::kQ4_1: return NibbleCodes(AsBytes(stored + 4), 0);
    case BlockFormat::kQ5_0: return NibbleCodes(AsBytes(stored + 6), LoadAs<uint32_t>(stored + 2));
    case BlockFormat::kQ5_1: return NibbleCodes(AsBytes(stored + 8), LoadAs<uint32_t>(stored + 4));
    case BlockFormat::kQ8_0:
      for (int j = 0; j < kQuantBlock; ++j) codes[j] = AsBytes(stored + 2)[j] ^ 0x80u;
      return codes;
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K: {
      // 32 bytes hold two blocks: low nibbles, then high nibbles; bit i of high[j] is the fifth bit of element j of block i.
      const bool has_fifth = format == BlockFormat::kQ5_K;
      const uint8_t* high = AsBytes(stored + 16);
      const uint8_t* q = AsBytes(stored + (has_fifth ? 48 : 16)) + sub / 2 * 32;
      for (int j = 0; j < kQuantBlock; ++j) {
        const uint32_t fifth = has_fifth ? high[j] >> sub & 1u : 0u;
        codes[j] = static_cast<uint8_t>((q[j] >> (sub % 2 * 4) & 15u) | fifth << 4);
      }
      return codes;
    }
    case BlockFormat::kQ6_K: {
      // Per 128 elements: nibbles of bytes 0-31 or 32-63, low ones first; two upper bits each in 32 bytes.
      const uint8_t* low = AsBytes(stored) + sub / 4 * 64 + sub % 2 * 32;
      const uint8_t* high = AsBytes(stored + 128) + sub / 4 * 32;
      for (int j = 0; j < kQuantBlock; ++j) {
        codes[j] = static_cast<uint8_t>((low[j] >> (sub % 4 / 2 * 4) & 15u) | (high[j] >> (sub % 4 * 2) & 3u) << 4);
      }
      return codes;
    }
  }
  COPPICE_CHECK(false);
}

// Scale and minimum factors of the eight blocks of a Q4_K or Q5_K superblock, 6 bits each in 12 bytes: bytes 0-3 have scales 0-3,
// bytes 4-7 minima 0-3 (low six bits); bytes 8-11 the low nibbles of scales and minima 4-7, whose upper two bits are the upper two
// of bytes 0-3 and 4-7.
struct Factors {
  uint8_t scale, minimum;
};
Factors SuperFactors(const std::byte* stored, int64_t sub) {
  const uint8_t* packed = AsBytes(stored + 4);
  if (sub < 4) return {static_cast<uint8_t>(packed[sub] & 63u), static_cast<uint8_t>(packed[sub + 4] & 63u)};
  return {static_cast<uint8_t>((packed[sub + 4] & 15u) | (packed[sub - 4] >> 6) << 4),
          static_cast<uint8_t>((packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4)};
}

void StoreWord(uint32_t word, int64_t index, int64_t column, std::byte* block) {
  std::memcpy(block + (index * kQuantStripCols + column) * 4, &word, 4);
}
uint32_t LoadWord(const std::byte* block, int64_t index, int64_t column) {
  return LoadAs<uint32_t>(block + (index * kQuantStripCols + column) * 4);
}

// Where operand j's byte b has its bits: a word and a shift for the low part, and for the high part of 5- and 6-bit codes.
void StoreCodes(const QuantLayout& layout, const Codes& codes, int64_t column, std::byte* block) {
  std::array<uint32_t, 8> words = {};
  for (uint32_t j = 0; j < 8; ++j) {
    for (uint32_t b = 0; b < 4; ++b) {
      const uint32_t code = codes[4 * j + b];
      if (layout.bits == 8) {
        words[j] |= code << (8 * b);
        continue;
      }
      words[j / 2] |= (code & 15u) << (8 * b + 4 * (j % 2));
      if (layout.bits == 5) words[4] |= (code >> 4) << (8 * b + j);
      if (layout.bits == 6) words[4 + j / 4] |= (code >> 4) << (8 * b + 2 * (j % 4));
    }
  }
  for (int64_t i = 0; i < layout.words(); ++i) StoreWord(words[i], i, column, block);
}

Codes LoadCodes(const QuantLayout& layout, const std::byte* block, int64_t column) {
  std::array<uint32_t, 8> words = {};
  for (int64_t i = 0; i < layout.words(); ++i) words[i] = LoadWord(block, i, column);
  Codes codes;
  for (uint32_t j = 0; j < 8; ++j) {
    for (uint32_t b = 0; b < 4; ++b) {
      uint32_t code = layout.bits == 8 ? words[j] >> (8 * b) & 255u : words[j / 2] >> (8 * b + 4 * (j % 2)) & 15u;
      if (layout.bits == 5) code |= (words[4] >> (8 * b + j) & 1u) << 4;
      if (layout.bits == 6) code |= (words[4 + j / 4] >> (8 * b + 2 * (j % 4)) & 3u) << 4;
      codes[4 * j + b] = static_cast<uint8_t>(code);
    }
  }
  return codes;
}

void StoreScales(BlockFormat format, const std::byte* stored, int64_t sub, int64_t column, std::byte* header, std::byte* scales) {
  const auto store_half = [&](const std::byte* from, std::byte* to) { std::memcpy(to + 2 * column, from, 2); };
  switch (Layout(format).scales) {
    case ScaleKind::kHalf: return store_half(stored, scales);
    case ScaleKind::kHalfMinimum: store_half(stored, scales); return store_half(stored + 2, scales + 2 * kQuantStripCols);
    case ScaleKind::kSuperMinimum: {
      store_half(stored, header);
      store_half(stored + 2, header + 2 * kQuantStripCols);
      const Factors factors = SuperFactors(stored, sub);
      scales[column] = std::byte{factors.scale};
      scales[kQuantStripCols + column] = std::byte{factors.minimum};
      return;
    }
    case ScaleKind::kSuperSixteens:
      store_half(stored + 208, header);
      scales[column] = stored[192 + 2 * sub];
      scales[kQuantStripCols + column] = stored[192 + 2 * sub + 1];
      return;
  }
}

}  // namespace

void PackColumn(BlockFormat format, const std::byte* row, int64_t in_features, int64_t column, std::byte* strip) {
  const QuantLayout& layout = Layout(format);
  const BlockFormatTraits& traits = Traits(format);
  COPPICE_DCHECK(in_features % traits.elements == 0 && column >= 0 && column < kQuantStripCols);
  const int64_t per_stored = traits.elements / kQuantBlock;
  for (int64_t b = 0; b < in_features / kQuantBlock; ++b) {
    const std::byte* stored = row + b / per_stored * traits.bytes;
    std::byte* block = strip + layout.BlockOffset(b);
    StoreCodes(layout, StoredCodes(format, stored, b % per_stored), column, block);
    StoreScales(format, stored, b % per_stored, column, strip + layout.HeaderOffset(b), block + layout.code_bytes());
  }
}

void UnpackColumn(BlockFormat format, const std::byte* strip, int64_t in_features, int64_t column, float* out) {
  const QuantLayout& layout = Layout(format);
  for (int64_t b = 0; b < in_features / kQuantBlock; ++b, out += kQuantBlock) {
    const std::byte* block = strip + layout.BlockOffset(b);
    const std::byte* scales = block + layout.code_bytes();
    const std::byte* header = strip + layout.HeaderOffset(b);
    const Codes codes = LoadCodes(layout, block, column);
    float scale[2] = {}, minimum = 0;  // of the block's halves; of all
    switch (layout.scales) {
      case ScaleKind::kHalf: scale[0] = scale[1] = LoadHalf(scales + 2 * column); break;
      case ScaleKind::kHalfMinimum:
        scale[0] = scale[1] = LoadHalf(scales + 2 * column);
        minimum = LoadHalf(scales + 2 * (kQuantStripCols + column));
        break;
      case ScaleKind::kSuperMinimum:
        scale[0] = scale[1] = LoadHalf(header + 2 * column) * static_cast<float>(AsBytes(scales)[column]);
        minimum =
            -(LoadHalf(header + 2 * (kQuantStripCols + column)) * static_cast<float>(AsBytes(scales)[kQuantStripCols + column]));
        break;
      case ScaleKind::kSuperSixteens:
        for (int half = 0; half < 2; ++half) {
          scale[half] =
              LoadHalf(header + 2 * column) * static_cast<float>(LoadAs<int8_t>(scales + half * kQuantStripCols + column));
        }
        break;
    }
    for (int64_t i = 0; i < kQuantBlock; ++i) {
      const float value = scale[i / 16] * static_cast<float>(codes[i] - layout.zero);
      out[i] = layout.has_minimum() ? value + minimum : value;
    }
  }
}

}  // namespace coppice::ops
