// The rules that plans are cut by on every GPU: what is tried, where trying ends, and how much sooner another choice must end. A
// card's rates are in its machine model (SmRates), and a kernel's tiles in kernel_config.h and plan_device.h: rules are in units
// of these. docs/kernels/hopper_log.md has the measurements. Layer: attention/cuda.
#pragma once

#include <array>
#include <cstdint>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/plan_units.h"
#include "attention/stream_cuts.h"

namespace coppice::attention::cuda {

// ---------------------------------------------------------------------------------------------------------------------- kinds

// Where stream tiles multiply eight rows at a time, items of more rows are dense from so many tokens on (docs/kernels/hopper.md,
// "Kinds of items").
inline constexpr int32_t kFewestTwoColumnDenseTokens = 2 * HopperKvTile(128);
// But not where they are so many tasks and dense tiles would compute all streamed tokens for as long as they take to start so many
// times. With 10 starts they take 0.94 of the time of stream tiles, with 20 1.02 on an H100 and 1.05 on an H200
// (bench/results/attention_wide_rows/2026-11-27_h100.txt, bench/results/attention_wide_rows/2026-11-25_h200.txt).
inline constexpr int64_t kTwoColumnTasksPerSm = 3;
inline constexpr double kTwoColumnStarts = 17;

// ------------------------------------------------------------------------------------------------------------- dense pieces

// A dense piece is whole dense steps, and no shorter than one of head_dim 128.
inline constexpr int32_t kMinDensePiece = HopperKvTile(128);
// Dense pieces tried: parts of an SM's even part of all dense tokens.
inline constexpr std::array<double, 11> kPieceShares = {1e9, 16.0, 8.0, 4.0, 2.0, 1.0, 1 / 2.0, 1 / 3.0, 1 / 4.0, 1 / 6.0, 1 / 8.0};

// ------------------------------------------------------------------------------------------------------------ stream pieces

// kv heads are put together in one task while warps keep so many tasks, and up to so many tokens and heads: half or twice as many
// tokens made short items slower. Those of an item of more than half of a stream tile's rows, which has more to store and to fold,
// count so many times.
inline constexpr int64_t kHeadTasksPerWarp = 3, kHeadTaskTokens = 4 * kStreamStepTokens, kMostTaskHeads = 8, kTwoColumnHeadWork = 8;

// Most tasks by cutting: for them a plan has states of its own.
inline constexpr int64_t kTasksPerStreamWarp = 8, kDenseTasksPerSm = 4;

// -------------------------------------------------------------------------------------------------------------- SM partition

// The fewest SMs that compute and how far apart the numbers tried are, as parts of all; dense pieces tried beside them are at most
// so much worse where all SMs compute.
inline constexpr double kFewestComputing = 0.45, kSmsApart = 0.12, kPieceWorthTrying = 1.05;
// The fewest tasks of a streaming warp, below which its last one decides when the step ends. Long items count by the last pieces
// that they are cut into.
inline constexpr int64_t kTasksOfStreamingWarp = 5, kTokensOfLastPieces = kMaxShortStreamPiece;
// A step of a stream warp beside few others of its SM, as a part of one beside all: its latency.
inline constexpr double kLoneStep = 0.5;
// Dense tasks of an SM that are simulated one by one; more even out by themselves.
inline constexpr int64_t kSimulatedTasksPerSm = 6;
// The part of the time before that another choice must be predicted to take: a smaller difference is noise; the time of overlapped
// tiles is known to 3 %.
inline constexpr double kWorthChanging = 0.99, kWorthOverlap = 0.97;
// An SM's overlapped tiles idle, before its dense tiles end, for the time of so many overlapped tasks of mean length: no task is
// begun that might last longer, with those drawn ahead. The KV copied until then grows with the dense tiles' time by that of
// overlapped steps, from 15 to 19 us on, of tasks of 256 tokens (bench/results/attention_side/2026-11-27_h100_capacity.txt).
inline constexpr double kOverlappedTasksNotBegun = 1.5;
// Where dense tiles end in this part of the step and are not cut further for it, overlapped streaming is no risk: a partition must
// only be as good.
inline constexpr double kDenseSoonDone = 0.3, kAsGood = 1.001;

}  // namespace coppice::attention::cuda
