// How many prompt tokens a step needs before prefill runs at full speed: larger chunks make running samples wait longer for
// nothing. Measured on the machine at hand, since it depends on the model and on the ratio of its arithmetic to its memory.
// Layer: engine. The trade-off of chunk sizes: POD-Attention section 2.
#pragma once

#include <span>
#include <vector>

#include "coppice/status.h"
#include "engine/engine_parts.h"

namespace coppice {

// Prefill speed of one prompt at powers of two from 16 tokens to the step's budget, smallest first; fewer where context or cache
// are small. Takes time for about four times the budget in tokens. REQUIRES: a cache that holds nothing; leaves it so.
Result<std::vector<ChunkSpeed>> MeasureChunks(const EngineParts& parts);

// The smallest within 5% of the best. REQUIRES: not empty.
int32_t SmallestGoodChunk(std::span<const ChunkSpeed> speeds);

}  // namespace coppice
