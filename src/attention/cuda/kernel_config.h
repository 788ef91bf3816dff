// Sizes of the kernel: tiles, rings, registers, shared memory, with where each number comes from. docs/kernels/hopper.md has the
// measurements. Layer: attention/cuda.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/cuda/plan_device.h"

namespace coppice::attention::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kDenseWarpgroups = 2;
inline constexpr int kStreamWarpsPerSm = 8;  // at least; what plans are cut for
inline constexpr int kBoxTokens = 16;        // most tokens of one bulk tensor copy: the common page size

// KV tokens of a dense step. 128 keeps the tensor cores busiest (64 registers of scores, 64 of output, 32 of weights in flight); 64
// is what fits beside a stream warpgroup.
inline constexpr int kSequentialKvTile = 128;
inline constexpr int kConcurrentKvTile = 64;

// kConcurrent_: stream tiles run in a warpgroup of their own beside the dense ones, at the same moment; otherwise the dense
// warpgroups turn to stream tiles when no dense task is left. The items and the code are the same.
template <class Element_, int kHeadDim_, int kKvTile_, bool kConcurrent_>
struct Config {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kKvTile = kKvTile_;  // tokens of a dense step
  static constexpr bool kConcurrent = kConcurrent_;
  static constexpr bool kDelays = false;  // see StressConfig

  static constexpr int kWarpgroups = 1 + kDenseWarpgroups + (kConcurrent ? 1 : 0);
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  // Registers of a thread by role; 65536 in all: 384 threads start with 168, 512 with 128, and setmaxnreg deals them anew.
  static constexpr int kProducerRegisters = kConcurrent ? 40 : 72;
  static constexpr int kDenseRegisters = kConcurrent ? 152 : 216;
  static constexpr int kStreamRegisters = 168;
  static_assert(kProducerRegisters + kDenseWarpgroups * kDenseRegisters + (kConcurrent ? kStreamRegisters : 0) <=
                (kConcurrent ? 512 : 504));

  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;  // K and V tiles in flight
  static constexpr int kQBuffers = 2;
  static constexpr int kHeadChunks = kHeadDim / 64;            // 128-byte columns: the span of the copy engine's swizzle
  static constexpr int kGroupBytes = 8 * kHeadDim * 2;         // 8 tokens of one head: [chunk][8][64]
  static constexpr int kKvTileBytes = kKvTile * kHeadDim * 2;  // K or V
  static constexpr int kQTileBytes = kDenseRows * kHeadDim * 2;
  static constexpr int kQHalfBytes = kQTileBytes / kDenseWarpgroups;

  // A stream step is 4 KB of K and 4 KB of V. 48 KB in flight fill an SM's share of the memory bus (measured).
  static constexpr int kStreamTokens = 2048 / kHeadDim;
  static constexpr int kStreamUnitBytes = kStreamTokens * kHeadDim * 2;
  static constexpr int kDenseArenaBytes = kQBuffers * kQTileBytes + 2 * kStages * kKvTileBytes;
  static constexpr int kTailWarps = kDenseWarpgroups * 4;  // the dense warps, once they stream in the dense tiles' memory
  static constexpr int kTailSteps = std::clamp(kDenseArenaBytes / (kTailWarps * 2 * kStreamUnitBytes), 2, 4);
  static constexpr int kStreamWarps = kConcurrent ? 4 : 0;
  static constexpr int kStreamSteps = 2;
  static constexpr int kStreamArenaBytes = kStreamWarps * kStreamSteps * 2 * kStreamUnitBytes;

  static constexpr int kFetchers = 1 + kTailWarps + kStreamWarps;  // warps that draw tasks
};

}  // namespace coppice::attention::cuda
