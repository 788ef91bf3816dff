// Scalar types and small enums shared by every layer: element types, devices, sharing modes.
// Layer: public API.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coppice {

enum class DType : uint8_t { kF32, kBF16, kF16 };

// Bytes per element.
constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr std::string_view Name(DType dtype) { return dtype == DType::kF32 ? "f32" : dtype == DType::kBF16 ? "bf16" : "f16"; }

// bfloat16 storage: the upper half of an IEEE float32. Arithmetic happens in float32.
struct BF16 {
  uint16_t bits = 0;

  static constexpr BF16 FromFloat(float value) {  // round to nearest even; NaN stays NaN
    uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
    u += 0x7fffu + ((u >> 16) & 1u);
    return {static_cast<uint16_t>(u >> 16)};
  }
  constexpr float ToFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16 storage. Arithmetic happens in float32.
struct F16 {
  uint16_t bits = 0;

  static constexpr F16 FromFloat(float value) {  // round to nearest even; overflow gives infinity
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
    const uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
    if (a >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or more
    if (a < 0x38800000u) {  // subnormal in f16: adding 0.5 aligns the mantissa so that the FPU rounds it
      const float shifted = std::bit_cast<float>(a) + 0.5f;
      return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
    }
    const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
  }
  constexpr float ToFloat() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t a = bits & 0x7fffu;
    if (a >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((a & 0x3ffu) << 13));
    if (a >= 0x0400u) return std::bit_cast<float>(sign | ((a << 13) + 0x38000000u));
    const float magnitude = static_cast<float>(a) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
};

enum class DeviceKind : uint8_t { kCpu, kCuda };
constexpr std::string_view Name(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

// A CUDA stream (cudaStream_t) without a CUDA header; null is the default stream. Ignored by CPU backends, whose calls return when
// the work is done.
using Stream = void*;

// How much of the KV cache requests share, in memory and in reads (architecture: "Sharing modes and baselines").
enum class SharingMode : uint8_t {
  kTree,      // every shared token is stored once and read once per step, where the cost model says that it saves time
  kOneLevel,  // only what all running requests have in common is read once
  kStore,     // stored once, but each request reads it itself, as engines with a prefix cache do
  kNone,      // a copy per request (a mode of the cache; the planner sees nothing to share)
};
constexpr std::string_view Name(SharingMode mode) {
  switch (mode) {
    case SharingMode::kTree: return "tree";
    case SharingMode::kOneLevel: return "one-level";
    case SharingMode::kStore: return "store";
    case SharingMode::kNone: return "none";
  }
  return "?";
}

// The part of KV that a rank holds (docs/ranks.md, "Fewer KV heads than ranks").
enum class KvSplit : uint8_t {
  kAuto,    // by tokens where several ranks have each KV head and that is predicted to be as fast, else by heads
  kHeads,   // all tokens of its KV heads
  kTokens,  // of KV heads that several ranks have, a part of the tokens
};
constexpr std::string_view Name(KvSplit split) {
  switch (split) {
    case KvSplit::kAuto: return "auto";
    case KvSplit::kHeads: return "heads";
    case KvSplit::kTokens: return "tokens";
  }
  return "?";
}

}  // namespace coppice
