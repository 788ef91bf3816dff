// Numbers that the planner, the cost model and the kernels share, apart so that device code may include them. Layer: attention,
// private.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace coppice::attention {

// Deterministic mode; plan.h says how plans use them. A backend's kernels may have another unit (BackendTraits).
inline constexpr int32_t kDeterministicUnit = 512, kSuperblockUnits = 8;
inline constexpr int32_t kDeterministicSuperblock = kSuperblockUnits * kDeterministicUnit;

// On a GPU, as its backend does and the cost model predicts: rows of a fold's pass, rows that one warp folds at most, one pass
// after the other, and the most pieces that a range is cut into along KV.
inline constexpr int64_t kFoldRows = 4, kFoldWarpRows = 16, kMostPieces = 64;

// The same of a stream task: a warp's step in tokens, alone or in a cooperative task, which all warps of a worker read.
inline constexpr int32_t kStreamStepTokens = 32;

// The passes of a fold for one state of an item of so many rows. Before its first state a fold waits for its ticket, the
// contributions and the code, as long as kFoldStartPasses take.
constexpr int64_t FoldPasses(int64_t rows) { return CeilDiv(rows < kFoldWarpRows ? rows : kFoldWarpRows, kFoldRows); }
inline constexpr int64_t kFoldStartPasses = 6;

}  // namespace coppice::attention
