// Constants and arithmetic that the stages of a replanning share. Layer: attention, private.
#pragma once

#include <cstdint>

namespace coppice::attention {

// Halvings of splitting, then of sharing too, before giving both up to fit a capacity.
inline constexpr int32_t kOnlyCoarser = 2, kMaxPressure = 12;
// Time classes of the queues: 16 an octave, that is 6 % apart.
inline constexpr int32_t kNumClasses = 32 * 16;

constexpr int32_t AlignDown(int32_t value, int32_t unit) { return value / unit * unit; }

// Sums that edits add to and subtract from are integers (picoseconds), so that they do not drift from a fresh plan's.
inline int64_t Picoseconds(double ns) { return static_cast<int64_t>(ns * 1e3 + 0.5); }

}  // namespace coppice::attention
