// Sizes of the kernel: tiles, rings, registers, shared memory, with where each number comes from. docs/kernels/hopper.md has the
// measurements. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/plan_device.h"
#include "attention/plan_units.h"

namespace coppice::attention::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kDenseWarpgroups = 2, kWarpgroupRows = kDenseRows / kDenseWarpgroups;
inline constexpr int kStreamWarpsPerSm = kDenseWarpgroups * 4;  // what plans are cut for
inline constexpr int kBoxTokens = 16;                           // most tokens of one bulk tensor copy: the common page size

// The part of the products' rate with head_dim 128 that Hopper's dense tiles reach: with 64, weights take as long, and products
// half (docs/kernels/hopper.md, G64: 508 TFLOP/s where G has 725).
constexpr double HopperDenseRate(int head_dim) { return head_dim == 64 ? 0.7 : 1.0; }
// The same of the cache's rate, which its stream tiles take KV at: with 64 a step has half of the bytes and takes two thirds of the
// time (bench/results/attention_small_steps/2026-11-27_h100.txt).
constexpr float HopperStreamRate(int head_dim) { return head_dim == 64 ? 0.75f : 1.0f; }

// The time of a dense task of deterministic mode alone on its SM, in the fast mode's: 44 us where 30 are predicted by these, 36 by
// 22 (bench/results/attention_deterministic/2026-11-27_h100_sweep.jsonl). Its stream tiles read a unit's K before its V: twice the
// time a token.
inline constexpr float kDeterministicDenseLatency = 2.0f;

// kDeterministic_: a row's bits depend on its request alone (deterministic_dense_tile.cuh). kOverlapsDecode_: a fourth warpgroup
// streams tasks of few rows while its CTA computes dense tiles (overlapped_stream.cuh). kGathers_: pages have fewer than eight
// tokens (gather.cuh).
template <class Element_, int kHeadDim_, bool kDeterministic_ = false, bool kOverlapsDecode_ = false, bool kGathers_ = false>
struct Config {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kDeterministic = kDeterministic_;
  static constexpr bool kDelays = false;  // see StressConfig
  static constexpr bool kOverlapsDecode = kOverlapsDecode_;
  static constexpr bool kGathers = kGathers_;
  static_assert(!kOverlapsDecode || !kGathers, "there is no warp for both");
  // Tokens of a dense step: as many as the registers hold (64 of scores, 64 of output, 32 of weights; 96, 32 and 48), since
  // barriers, the turn, a softmax's first exponential and its check cost the same whatever the tokens: a fifth of 128 of
  // head_dim 64.
  static constexpr int kKvTile = kDeterministic ? kHopperDeterministicUnit : HopperKvTile(kHeadDim);
  static constexpr int kMostBoxes = kKvTile / 8;  // bulk tensor copies of a tile: pages of 8 tokens are the smallest

  static constexpr int kThreads = (1 + kDenseWarpgroups + kOverlapsDecode) * kWarpgroup;
  // Registers of a thread by role; 65536 in all: 384 threads start with 168, and setmaxnreg deals them anew.
  static constexpr int kProducerRegisters = kOverlapsDecode ? 64 : 72;
  static constexpr int kDenseRegisters = kOverlapsDecode ? 200 : 216;
  static constexpr int kOverlappedRegisters = 48;
  static_assert(kProducerRegisters + kDenseWarpgroups * kDenseRegisters + kOverlapsDecode * kOverlappedRegisters <=
                65536 / kThreads / 8 * 8 * kThreads / kWarpgroup);

  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;       // K and V tiles in flight
  static constexpr int kTaskSlots = 2;                         // dense tasks: the one that is computed and the next
  static constexpr int kQBuffers = kOverlapsDecode ? 1 : 2;    // with overlapped tiles there is no room for the next task's Q
  static constexpr int kGatherers = kGathers ? 1 : 2;          // warps that gather Q; with overlapped tiles the dense warps do
  static constexpr int kKvLoaders = kGathers ? 2 : 1;          // warps that bring KV of dense tiles: K and V, or both
  static constexpr int kCopyArrivals = kGathers ? 32 : 1;      // that say that a tile of KV is there: of lanes, or bytes alone
  static constexpr int kHeadChunks = kHeadDim / 64;            // 128-byte columns: the span of the copy engine's swizzle
  static constexpr int kGroupBytes = 8 * kHeadDim * 2;         // 8 tokens of one head: [chunk][8][64]
  static constexpr int kKvTileBytes = kKvTile * kHeadDim * 2;  // K or V
  static constexpr int kQTileBytes = kDenseRows * kHeadDim * 2;
  static constexpr int kQHalfBytes = kQTileBytes / kDenseWarpgroups;

  // A stream step is 32 tokens: with fewer, the latencies of a step (products, maximum, weights) cost more than its bytes. 96 KB in
  // flight fill an SM's share of the memory bus; what is more waits in a queue that look-ups, Q and states wait in too (measured:
  // 192 KB).
  static constexpr int kStreamTokens = kStreamStepTokens;
  static constexpr int kStreamUnitBytes = kStreamTokens * kHeadDim * 2;  // K or V of a step
  static constexpr int kStreamWarps = kDenseWarpgroups * 4;              // the dense warps, which stream in the dense tiles' memory
  static constexpr int kStreamSteps = 128 * 1024 / (kStreamWarps * 2 * kStreamUnitBytes);  // in flight

  static constexpr int kOverlappedTokens = kOverlappedStepTokens;
  static constexpr int kOverlappedSlots = 3;  // tasks: the one that is computed and those that are looked up
  static constexpr int kOverlappedUnitBytes = kOverlappedTokens * kHeadDim * 2;  // K or V of a step
  // In flight or in use: the K of the next step beside K and V of one, as much as shared memory holds.
  static constexpr int kOverlappedUnits = 3;
  // A task's first step begins at a multiple of this: in deterministic mode steps lie at absolute positions.
  static constexpr int kDenseAlignment = kDeterministic ? kKvTile : kBoxTokens;
  static constexpr int kStreamAlignment = kDeterministic ? kStreamTokens : kBoxTokens;

  static constexpr int kStreamSlots = 2;  // tasks of a stream warp: the one it works on and the next

  // Deterministic mode: what a CTA keeps in device memory, output, maxima and sums of the two rows that a thread holds parts of.
  static constexpr int kFoldThreads = kDenseWarpgroups * kWarpgroup, kFoldFloats = kHeadDim / 2 + 4;
};

}  // namespace coppice::attention::cuda
