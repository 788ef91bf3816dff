// How many prompt tokens a step needs before prefill runs at full speed: larger chunks make running samples wait longer for
// nothing. Measured on the machine at hand, since it depends on the model and on the ratio of its arithmetic to its memory.
// And the run before the first run, which takes the time of a cold start. Layer: engine. The trade-off of chunk sizes:
// POD-Attention section 2.
#pragma once

#include <span>
#include <vector>

#include "coppice/core/status.h"
#include "engine/engine_parts.h"

namespace coppice {

// One forward pass over a few tokens: threads awake, kernels made, weights, workspaces and the first pages of each layer's KV
// touched, so that the first request does not wait for them. REQUIRES: a cache that holds nothing; leaves it so.
Status WarmUp(const EngineParts& parts);

// Prefill speed of one prompt at powers of two from 16 tokens to the step's budget, smallest first; fewer where context or cache
// are small. Takes time for about four times the budget in tokens. REQUIRES: as WarmUp; after it.
Result<std::vector<ChunkSpeed>> MeasureChunks(const EngineParts& parts);

// The smallest within 5% of the best. REQUIRES: not empty.
int32_t SmallestGoodChunk(std::span<const ChunkSpeed> speeds);

}  // namespace coppice
