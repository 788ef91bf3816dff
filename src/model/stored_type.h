// Element types as they lie in model files, quantised blocks included, with their sizes and the names the formats give them.
// Layer: model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "coppice/core/types.h"

namespace coppice {

// The floats are in both formats, the blocks in GGUF, the rest in safetensors and never weights here.
// clang-format off
enum class StoredType : uint8_t {
  kF32, kF16, kBF16,
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K,
  kF64, kI64, kU64, kI32, kU32, kI16, kU16, kI8, kU8, kBool, kF8E4M3, kF8E5M2,
};
// clang-format on

struct StoredTypeTraits {
  std::string_view name;
  int32_t block_elements;  // consecutive elements of a row that share scales; 1: none
  int32_t block_bytes;
  bool is_weight;  // Dequantize reads it
};

inline constexpr std::array<StoredTypeTraits, 23> kStoredTypes = {{
    {"F32", 1, 4, true},      {"F16", 1, 2, true},      {"BF16", 1, 2, true},     {"Q4_0", 32, 18, true},
    {"Q4_1", 32, 20, true},   {"Q5_0", 32, 22, true},   {"Q5_1", 32, 24, true},   {"Q8_0", 32, 34, true},
    {"Q4_K", 256, 144, true}, {"Q5_K", 256, 176, true}, {"Q6_K", 256, 210, true}, {"F64", 1, 8, false},
    {"I64", 1, 8, false},     {"U64", 1, 8, false},     {"I32", 1, 4, false},     {"U32", 1, 4, false},
    {"I16", 1, 2, false},     {"U16", 1, 2, false},     {"I8", 1, 1, false},      {"U8", 1, 1, false},
    {"BOOL", 1, 1, false},    {"F8_E4M3", 1, 1, false}, {"F8_E5M2", 1, 1, false},
}};
static_assert(kStoredTypes[static_cast<size_t>(StoredType::kF8E5M2)].name == "F8_E5M2", "one entry per enumerator, in order");
static_assert(kStoredTypes[static_cast<size_t>(StoredType::kQ6_K)].name == "Q6_K", "one entry per enumerator, in order");

constexpr const StoredTypeTraits& Traits(StoredType type) { return kStoredTypes[static_cast<size_t>(type)]; }
constexpr std::string_view Name(StoredType type) { return Traits(type).name; }

// By the name that safetensors headers use and that GGUF tools print.
constexpr std::optional<StoredType> StoredTypeFromName(std::string_view name) {
  for (size_t i = 0; i < kStoredTypes.size(); ++i) {
    if (kStoredTypes[i].name == name) return static_cast<StoredType>(i);
  }
  return std::nullopt;
}

// The type of elements that are stored as they are computed with.
constexpr StoredType StoredTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return StoredType::kF32;
    case DType::kF16: return StoredType::kF16;
    case DType::kBF16: return StoredType::kBF16;
  }
  return StoredType::kF32;
}

// Bytes of `count` consecutive elements. REQUIRES: count a multiple of block_elements.
constexpr int64_t StoredBytes(StoredType type, int64_t count) {
  return count / Traits(type).block_elements * Traits(type).block_bytes;
}

}  // namespace coppice
