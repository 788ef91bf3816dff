// Numbers that the planner, the cost model and the kernels share, apart so that device code may include them. Layer: attention,
// private.
#pragma once

#include <cstdint>
#include <type_traits>

namespace coppice::attention {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
// To a multiple of `unit`.
template <class T>
constexpr T RoundUp(T value, std::type_identity_t<T> unit) {
  return (value + unit - 1) / unit * unit;
}

// Deterministic mode; plan.h says how plans use them. A backend's kernels may have another unit (BackendTraits).
inline constexpr int32_t kDeterministicUnit = 512, kSuperblockUnits = 8;
inline constexpr int32_t kDeterministicSuperblock = kSuperblockUnits * kDeterministicUnit;

// On a GPU, as its backend does and the cost model predicts: rows of a fold's pass, rows that one warp folds at most, one pass
// after the other, and the most pieces that a range is cut into along KV.
inline constexpr int64_t kFoldRows = 4, kFoldWarpRows = 16, kMostPieces = 64;

// What a fold waits for before its first state, the ticket, the contributions and the code, lasts as long as so many passes.
inline constexpr int64_t kFoldStartPasses = 6;
// Of one state of an item of so many rows.
constexpr int64_t FoldPasses(int64_t rows) { return CeilDiv(rows < kFoldWarpRows ? rows : kFoldWarpRows, kFoldRows); }

// The same of teams, the lanes of a worker that read a stream task together: a lane's step in tokens.
inline constexpr int32_t kStreamStepTokens = 32;

}  // namespace coppice::attention
