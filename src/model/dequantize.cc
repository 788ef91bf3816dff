#include "model/dequantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace coppice {
namespace {

static_assert(std::endian::native == std::endian::little, "model files are little endian and are read in place");

template <class T>
T LoadAs(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// F16::ToFloat without branches, so that loops over it vectorise: scaling by 2^112 moves the exponent bias from 15 to 127 and
// makes subnormals right; infinities and NaNs get their exponent afterwards.
inline float HalfToFloat(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(scaled | special | static_cast<uint32_t>(bits & 0x8000u) << 16);
}
inline float LoadHalf(const std::byte* p) { return HalfToFloat(LoadAs<uint16_t>(p)); }

inline const uint8_t* AsBytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

void DecodeF32(const std::byte* stored, int64_t count, float* out) { std::memcpy(out, stored, static_cast<size_t>(count) * 4); }

void DecodeF16(const std::byte* stored, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = LoadHalf(stored + 2 * i);
}

void DecodeBF16(const std::byte* stored, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(LoadAs<uint16_t>(stored + 2 * i)) << 16);
}

// The 32-element formats: element j of a block is in the low nibble of byte j, element j + 16 in its high nibble.

void DecodeQ4_0(const std::byte* block, float* out) {  // d: f16, nibbles[16]; value d * (q - 8)
  const float d = LoadHalf(block);
  const uint8_t* q = AsBytes(block + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((q[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((q[j] >> 4) - 8);
  }
}

void DecodeQ4_1(const std::byte* block, float* out) {  // d, m: f16, nibbles[16]; value d * q + m
  const float d = LoadHalf(block), m = LoadHalf(block + 2);
  const uint8_t* q = AsBytes(block + 4);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(q[j] & 15) + m;
    out[j + 16] = d * static_cast<float>(q[j] >> 4) + m;
  }
}

void DecodeQ5_0(const std::byte* block, float* out) {  // d: f16, fifth bits: u32, nibbles[16]; value d * (q - 16)
  const float d = LoadHalf(block);
  const uint32_t high = LoadAs<uint32_t>(block + 2);
  const uint8_t* q = AsBytes(block + 6);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(static_cast<int>((q[j] & 15u) | (high >> j & 1u) << 4) - 16);
    out[j + 16] = d * static_cast<float>(static_cast<int>((q[j] >> 4) | (high >> (j + 16) & 1u) << 4) - 16);
  }
}

void DecodeQ5_1(const std::byte* block, float* out) {  // d, m: f16, fifth bits: u32, nibbles[16]; value d * q + m
  const float d = LoadHalf(block), m = LoadHalf(block + 2);
  const uint32_t high = LoadAs<uint32_t>(block + 4);
  const uint8_t* q = AsBytes(block + 8);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((q[j] & 15u) | (high >> j & 1u) << 4) + m;
    out[j + 16] = d * static_cast<float>((q[j] >> 4) | (high >> (j + 16) & 1u) << 4) + m;
  }
}

void DecodeQ8_0(const std::byte* block, float* out) {  // d: f16, q: int8[32]; value d * q
  const float d = LoadHalf(block);
  const int8_t* q = reinterpret_cast<const int8_t*>(block + 2);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(q[j]);
}

// The 256-element formats with eight sub-blocks of 32: a 6-bit scale and a 6-bit minimum each, packed into 12 bytes. Bytes 0-3
// hold scales 0-3, bytes 4-7 minima 0-3 (low six bits); bytes 8-11 the low nibbles of scales and minima 4-7, whose upper two bits
// are the upper two of bytes 0-3 and 4-7.
struct SubBlockScales {
  std::array<float, 8> scale, minimum;
};
SubBlockScales LoadSubBlockScales(const std::byte* block) {
  const float d = LoadHalf(block), dmin = LoadHalf(block + 2);
  const uint8_t* packed = AsBytes(block + 4);
  SubBlockScales s;
  for (int i = 0; i < 4; ++i) {
    s.scale[i] = d * static_cast<float>(packed[i] & 63);
    s.minimum[i] = dmin * static_cast<float>(packed[i + 4] & 63);
    s.scale[i + 4] = d * static_cast<float>((packed[i + 8] & 15) | (packed[i] >> 6) << 4);
    s.minimum[i + 4] = dmin * static_cast<float>((packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4);
  }
  return s;
}

void DecodeQ4_K(const std::byte* block, float* out) {  // d, dmin: f16, scales[12], nibbles[128]; value (d sc) * q - (dmin m)
  const SubBlockScales s = LoadSubBlockScales(block);
  const uint8_t* q = AsBytes(block + 16);
  for (int pair = 0; pair < 4; ++pair, q += 32, out += 64) {  // 32 bytes hold two sub-blocks: low nibbles, then high nibbles
    for (int j = 0; j < 32; ++j) {
      out[j] = s.scale[2 * pair] * static_cast<float>(q[j] & 15) - s.minimum[2 * pair];
      out[j + 32] = s.scale[2 * pair + 1] * static_cast<float>(q[j] >> 4) - s.minimum[2 * pair + 1];
    }
  }
}

void DecodeQ5_K(const std::byte* block, float* out) {  // as Q4_K, with bit i of high[j] the fifth bit of element j of sub-block i
  const SubBlockScales s = LoadSubBlockScales(block);
  const uint8_t* high = AsBytes(block + 16);
  const uint8_t* q = AsBytes(block + 48);
  for (int pair = 0; pair < 4; ++pair, q += 32, out += 64) {
    for (int j = 0; j < 32; ++j) {
      const int low_q = (q[j] & 15) | (high[j] >> (2 * pair) & 1) << 4;
      const int high_q = (q[j] >> 4) | (high[j] >> (2 * pair + 1) & 1) << 4;
      out[j] = s.scale[2 * pair] * static_cast<float>(low_q) - s.minimum[2 * pair];
      out[j + 32] = s.scale[2 * pair + 1] * static_cast<float>(high_q) - s.minimum[2 * pair + 1];
    }
  }
}

void DecodeQ6_K(const std::byte* block,
                float* out) {  // low nibbles[128], upper bits[64], scale: int8[16], d: f16; (d sc) * (q - 32)
  const uint8_t* low = AsBytes(block);
  const uint8_t* high = AsBytes(block + 128);
  const int8_t* packed = reinterpret_cast<const int8_t*>(block + 192);
  const float d = LoadHalf(block + 208);
  std::array<float, 16> scale;  // one per 16 elements
  for (int i = 0; i < 16; ++i) scale[i] = d * static_cast<float>(packed[i]);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, out += 128) {
    for (int part = 0; part < 4; ++part) {  // 32 elements each: nibbles of bytes 0-31 or 32-63, low ones first; 2 upper bits
      const uint8_t* nibbles = low + (part & 1) * 32;
      const int nibble_shift = (part >> 1) * 4;
      for (int run = 0; run < 2; ++run) {
        const float s = scale[half * 8 + part * 2 + run];
        for (int j = run * 16; j < run * 16 + 16; ++j) {
          const int q = (nibbles[j] >> nibble_shift & 15) | (high[j] >> (2 * part) & 3) << 4;
          out[part * 32 + j] = s * static_cast<float>(q - 32);
        }
      }
    }
  }
}

template <StoredType type, void (*DecodeBlock)(const std::byte*, float*)>
void DecodeBlocks(const std::byte* stored, int64_t count, float* out) {
  constexpr StoredTypeTraits kTraits = Traits(type);
  for (const float* end = out + count; out != end; out += kTraits.block_elements, stored += kTraits.block_bytes) {
    DecodeBlock(stored, out);
  }
}

template <class Half>
void RoundTo(const float* values, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = Half::FromFloat(values[i]).bits;
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

}  // namespace

void Dequantize(StoredType type, const std::byte* stored, int64_t count, float* out) {
  COPPICE_DCHECK(Traits(type).is_weight && count % Traits(type).block_elements == 0);
  switch (type) {
    case StoredType::kF32: return DecodeF32(stored, count, out);
    case StoredType::kF16: return DecodeF16(stored, count, out);
    case StoredType::kBF16: return DecodeBF16(stored, count, out);
    case StoredType::kQ4_0: return DecodeBlocks<StoredType::kQ4_0, DecodeQ4_0>(stored, count, out);
    case StoredType::kQ4_1: return DecodeBlocks<StoredType::kQ4_1, DecodeQ4_1>(stored, count, out);
    case StoredType::kQ5_0: return DecodeBlocks<StoredType::kQ5_0, DecodeQ5_0>(stored, count, out);
    case StoredType::kQ5_1: return DecodeBlocks<StoredType::kQ5_1, DecodeQ5_1>(stored, count, out);
    case StoredType::kQ8_0: return DecodeBlocks<StoredType::kQ8_0, DecodeQ8_0>(stored, count, out);
    case StoredType::kQ4_K: return DecodeBlocks<StoredType::kQ4_K, DecodeQ4_K>(stored, count, out);
    case StoredType::kQ5_K: return DecodeBlocks<StoredType::kQ5_K, DecodeQ5_K>(stored, count, out);
    case StoredType::kQ6_K: return DecodeBlocks<StoredType::kQ6_K, DecodeQ6_K>(stored, count, out);
    default: COPPICE_CHECK(false);  // integers are never weights: callers refuse them with the tensor's name
  }
}

int32_t CodeBits(StoredType type) {
  switch (type) {
    case StoredType::kQ4_0:
    case StoredType::kQ4_1: return 4;
    case StoredType::kQ5_0:
    case StoredType::kQ5_1:
    case StoredType::kQ8_0: return 8;
    default: return 0;
  }
}

bool DecodeCodes(StoredType type, const std::byte* stored, int64_t count, int8_t* codes, F16* scales, F16* minima) {
  COPPICE_DCHECK(CodeBits(type) > 0 && count % 32 == 0);
  const bool has_minimum = type == StoredType::kQ4_1 || type == StoredType::kQ5_1;
  const bool has_fifth_bit = type == StoredType::kQ5_0 || type == StoredType::kQ5_1;
  // Formats without a minimum put zero in the middle of their codes.
  const float zero_code = type == StoredType::kQ4_0 ? 8 : type == StoredType::kQ5_0 ? 16 : 0;
  bool in_range = true;
  for (int64_t b = 0; b < count / 32; ++b, stored += Traits(type).block_bytes, codes += 32) {
    const std::byte* at = stored;
    scales[b] = LoadAs<F16>(at);
    at += 2;
    minima[b] = has_minimum ? LoadAs<F16>(at) : F16::FromFloat(-zero_code * scales[b].ToFloat());
    at += has_minimum ? 2 : 0;
    in_range = in_range && (has_minimum || std::isfinite(minima[b].ToFloat()));
    if (type == StoredType::kQ8_0) {
      std::memcpy(codes, at, 32);
      continue;
    }
    const uint32_t fifth = has_fifth_bit ? LoadAs<uint32_t>(at) : 0;
    at += has_fifth_bit ? 4 : 0;
    const uint8_t* q = AsBytes(at);
    for (int j = 0; j < 16; ++j) {
      codes[j] = static_cast<int8_t>((q[j] & 15u) | (fifth >> j & 1u) << 4);
      codes[j + 16] = static_cast<int8_t>((q[j] >> 4) | (fifth >> (j + 16) & 1u) << 4);
    }
  }
  return in_range;
}

void ConvertRow(StoredType type, const std::byte* stored, int64_t count, DType dtype, std::byte* out) {
  if ((type == StoredType::kF32 && dtype == DType::kF32) || (type == StoredType::kBF16 && dtype == DType::kBF16) ||
      (type == StoredType::kF16 && dtype == DType::kF16)) {
    std::memcpy(out, stored, static_cast<size_t>(count) * SizeOf(dtype));
    return;
  }
  constexpr int64_t kChunk = 1024;  // whole blocks of every type, and the floats stay in L1
  alignas(64) std::array<float, kChunk> values;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t n = std::min(kChunk, count - begin);
    Dequantize(type, stored + StoredBytes(type, begin), n, values.data());
    std::byte* to = out + begin * static_cast<int64_t>(SizeOf(dtype));
    switch (dtype) {
      case DType::kF32: std::memcpy(to, values.data(), static_cast<size_t>(n) * 4); break;
      case DType::kBF16: RoundTo<BF16>(values.data(), n, to); break;
      case DType::kF16: RoundTo<F16>(values.data(), n, to); break;
    }
  }
}

}  // namespace coppice
