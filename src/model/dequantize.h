// Weights as stored -> f32, bf16 or f16. Block formats are those of GGUF; the values equal the format's definition bit for bit:
// each product and sum rounded to f32 in its stated order, without fused operations.
// Layer: model.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coppice/core/types.h"
#include "model/stored_type.h"

namespace coppice {

// Writes `count` values. `stored`: StoredBytes(type, count) bytes of any alignment. Thread-safe.
// REQUIRES: Traits(type).is_weight, count a multiple of block_elements.
void Dequantize(StoredType type, const std::byte* stored, int64_t count, float* out);

// The same, rounded to nearest even in `dtype`; `out` holds count elements of it. Same-type conversion copies bits.
void ConvertRow(StoredType type, const std::byte* stored, int64_t count, DType dtype, std::byte* out);

// Bits of the integers that blocks of 32 hold: 4 for Q4_0 and Q4_1, 8 for Q5_0, Q5_1 and Q8_0; 0 for types that are not one scale
// and one minimum per 32 elements.
int32_t CodeBits(StoredType type);
// Those integers: value i is scales[i / 32] * codes[i] + minima[i / 32], exactly what Dequantize gives. Codes: 0 to 15 with 4 bits,
// else -128 to 127. False if a minimum is out of f16's range. REQUIRES: CodeBits(type) > 0, count a multiple of 32.
[[nodiscard]] bool DecodeCodes(StoredType type, const std::byte* stored, int64_t count, int8_t* codes, F16* scales, F16* minima);

}  // namespace coppice
