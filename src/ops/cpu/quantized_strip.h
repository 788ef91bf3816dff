// Rows of a quantised matrix to and from the strips that products read (quantized_format.h).
// Layer: ops, private.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/quantized_format.h"

namespace coppice::ops {

// Writes one stored row as column `column` (0 to 31) of a zeroed strip. REQUIRES: in_features a multiple of the format's elements.
void PackColumn(BlockFormat format, const std::byte* row, int64_t in_features, int64_t column, std::byte* strip);

// The values of a column, bit for bit those of the format's definition in fp32 (products and sums rounded one by one).
void UnpackColumn(BlockFormat format, const std::byte* strip, int64_t in_features, int64_t column, float* out);

}  // namespace coppice::ops
