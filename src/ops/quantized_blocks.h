// The block formats of quantised model files whose weights products can read as they are. Values: model/dequantize.h.
// Layer: ops.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coppice::ops {

enum class BlockFormat : uint8_t { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };
inline constexpr size_t kNumBlockFormats = 8;

struct BlockFormatTraits {
  std::string_view name;
  int64_t elements;  // consecutive elements of a row in one block
  int64_t bytes;
};
inline constexpr std::array<BlockFormatTraits, kNumBlockFormats> kBlockFormats = {{{"Q4_0", 32, 18},
                                                                                   {"Q4_1", 32, 20},
                                                                                   {"Q5_0", 32, 22},
                                                                                   {"Q5_1", 32, 24},
                                                                                   {"Q8_0", 32, 34},
                                                                                   {"Q4_K", 256, 144},
                                                                                   {"Q5_K", 256, 176},
                                                                                   {"Q6_K", 256, 210}}};
constexpr const BlockFormatTraits& Traits(BlockFormat format) { return kBlockFormats[static_cast<size_t>(format)]; }

}  // namespace coppice::ops
