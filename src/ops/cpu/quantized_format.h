// The block formats of GGUF that products read directly, and how packed weights of each lie in memory. The layout is the same for
// every instruction set.
// Layer: ops, private.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ops/quantized_blocks.h"

namespace coppice::ops {

// A *strip* is 32 columns (rows of the stored matrix) x all inputs; a *block* is 32 inputs of a strip. The element of column c at
// input i is scale[c] * (code - zero) + minimum[c].
inline constexpr int64_t kQuantStripCols = 32;
inline constexpr int64_t kQuantBlock = 32;
inline constexpr int64_t kBlocksPerSuperblock = 8;  // of the K formats

// How a block's scales are stored: values of their own, or 6- or 8-bit factors of a superblock's f16 values.
enum class ScaleKind : uint8_t {
  kHalf,           // f16 scale[32]
  kHalfMinimum,    // f16 scale[32], f16 minimum[32]
  kSuperMinimum,   // u8 factor[32], u8 minimum factor[32]; of the superblock's f16 d[32], f16 dmin[32]
  kSuperSixteens,  // i8 factor of inputs 0 to 15 [32], of inputs 16 to 31 [32]; of the superblock's f16 d[32]
};

// Codes lie in 32-bit words, one per column; word j of 32 columns together. The four bytes of operand j (0 to 7) are inputs 4 j to
// 4 j + 3 of the block:
//   4 bits and more: word i has operand 2 i in its bytes' low nibbles and operand 2 i + 1 in their high ones (4 words);
//   5 bits: one more word; bit j of byte b is the fifth bit of operand j's byte b;
//   6 bits: two more; bits 2 (j % 4) and up of byte b of word j / 4 are the upper bits of operand j's byte b;
//   8 bits: word j is operand j (8 words); codes are stored plus 128.
// Always inlined: an instance of its own in kernels_<isa>.cc could be merged into code for other machines.
struct QuantLayout {
  int32_t bits;
  int32_t zero;
  ScaleKind scales;

  [[gnu::always_inline]] constexpr bool has_minimum() const {
    return scales == ScaleKind::kHalfMinimum || scales == ScaleKind::kSuperMinimum;
  }
  [[gnu::always_inline]] constexpr bool has_superblocks() const {
    return scales == ScaleKind::kSuperMinimum || scales == ScaleKind::kSuperSixteens;
  }
  [[gnu::always_inline]] constexpr int64_t words() const { return bits == 8 ? 8 : bits == 6 ? 6 : bits == 5 ? 5 : 4; }
  [[gnu::always_inline]] constexpr int64_t code_bytes() const { return words() * kQuantStripCols * 4; }
  [[gnu::always_inline]] constexpr int64_t scale_bytes() const {
    return kQuantStripCols * (scales == ScaleKind::kHalfMinimum ? 4 : 2);
  }
  [[gnu::always_inline]] constexpr int64_t block_bytes() const { return code_bytes() + scale_bytes(); }
  [[gnu::always_inline]] constexpr int64_t superblock_header_bytes() const {
    return !has_superblocks() ? 0 : kQuantStripCols * (scales == ScaleKind::kSuperMinimum ? 4 : 2);
  }
  [[gnu::always_inline]] constexpr int64_t superblock_bytes() const {
    return superblock_header_bytes() + kBlocksPerSuperblock * block_bytes();
  }
  // Where block b begins in its strip; a superblock's header lies before its first block.
  [[gnu::always_inline]] constexpr int64_t BlockOffset(int64_t b) const {
    if (!has_superblocks()) return b * block_bytes();
    return b / kBlocksPerSuperblock * superblock_bytes() + superblock_header_bytes() + b % kBlocksPerSuperblock * block_bytes();
  }
  [[gnu::always_inline]] constexpr int64_t HeaderOffset(int64_t b) const { return b / kBlocksPerSuperblock * superblock_bytes(); }
  constexpr int64_t StripBytes(int64_t in_features) const {
    const int64_t blocks = in_features / kQuantBlock;
    return has_superblocks() ? blocks / kBlocksPerSuperblock * superblock_bytes() : blocks * block_bytes();
  }
};

inline constexpr std::array<QuantLayout, kNumBlockFormats> kQuantLayouts = {{
    {4, 8, ScaleKind::kHalf},           // Q4_0
    {4, 0, ScaleKind::kHalfMinimum},    // Q4_1
    {5, 16, ScaleKind::kHalf},          // Q5_0
    {5, 0, ScaleKind::kHalfMinimum},    // Q5_1
    {8, 128, ScaleKind::kHalf},         // Q8_0
    {4, 0, ScaleKind::kSuperMinimum},   // Q4_K
    {5, 0, ScaleKind::kSuperMinimum},   // Q5_K
    {6, 32, ScaleKind::kSuperSixteens}  // Q6_K
}};
constexpr const QuantLayout& Layout(BlockFormat format) { return kQuantLayouts[static_cast<size_t>(format)]; }

}  // namespace coppice::ops
