// Weights as stored -> f32, bf16 or f16. Block formats are those of GGUF; the values equal the format's definition bit for bit:
// each product and sum rounded to f32 in its stated order, without fused operations.
// Layer: model.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coppice/types.h"
#include "model/stored_type.h"

namespace coppice {

// Writes `count` values. `stored`: StoredBytes(type, count) bytes of any alignment. Thread-safe.
// REQUIRES: Traits(type).is_weight, count a multiple of block_elements.
void Dequantize(StoredType type, const std::byte* stored, int64_t count, float* out);

// The same, rounded to nearest even in `dtype`; `out` holds count elements of it. Same-type conversion copies bits.
void ConvertRow(StoredType type, const std::byte* stored, int64_t count, DType dtype, std::byte* out);

}  // namespace coppice
