// The inner loops of products with quantised weights, compiled once per instruction set. quantized_kernels-inl.h has the bodies.
// Layer: ops, private.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "coppice/core/types.h"
#include "ops/cpu/quantized_format.h"

namespace coppice::ops {

// How exactly a product's input is brought to integers, one scale per 32 elements.
enum class InputPrecision : uint8_t {
  kWide,    // 16 bits: to 2^-16 of the block's largest magnitude
  kNarrow,  // 8 bits around the middle of the block's range: to 2^-8 of half its width
};

// x as integers: element i of a row is codes[i] * scales[i / 32] + middles[i / 32] (kWide: no middles) to within half a scale.
struct QuantizedInput {
  int16_t* wide = nullptr;     // [rows, k]; inputs 4 j, 4 j + 2, 4 j + 1, 4 j + 3 of each four, as the weights' words give them
  int8_t* narrow = nullptr;    // [rows, k]
  float* scales = nullptr;     // [rows, k / 32]
  float* middles = nullptr;    // [rows, k / 32]
  float* sums = nullptr;       // [rows, k / 32] of a block's elements as quantised
  int32_t* negated = nullptr;  // [rows, k / 32] minus the sum of a block's codes
  int32_t* negated_halves = nullptr;  // [rows, k / 16] likewise of 16 codes

  // The same from row r on.
  [[gnu::always_inline]] QuantizedInput FromRow(int64_t r, int64_t k) const {
    const int64_t blocks = k / kQuantBlock;
    return {wide + r * k,
            narrow + r * k,
            scales + r * blocks,
            middles + r * blocks,
            sums + r * blocks,
            negated + r * blocks,
            negated_halves + 2 * r * blocks};
  }
};

struct QuantizedKernels {
  // tile[r][c] = sum over the inputs of x[r] times column c of a strip, for its 32 columns; rows tile_stride apart. The sum of a
  // block is exact; blocks are added in increasing order. The bits of a row do not depend on `rows`.
  // ahead: while the strip is read, what lies so many bytes behind it is asked for, to the second-level cache.
  using Multiply = void (*)(const QuantizedInput& x, int64_t rows, const std::byte* strip, int64_t ahead, int64_t k, float* tile,
                            int64_t tile_stride);
  // One row of k elements, a multiple of 32; dtype f32 or bf16. A block with a NaN or an infinity becomes NaN.
  using Quantize = void (*)(const void* x, DType dtype, int64_t k, const QuantizedInput& out);

  Quantize quantize_wide, quantize_narrow;
  std::array<Multiply, kNumBlockFormats> wide;
  std::array<Multiply, kNumBlockFormats> narrow;  // null where it would gain nothing
};

}  // namespace coppice::ops
