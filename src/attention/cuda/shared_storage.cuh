// The CTA's shared memory, one struct. Barriers are named for the fact they announce. Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/merge.cuh"

namespace coppice::attention::cuda {

// The part of its KV range that a task's rows see.
struct TaskRange {
  int32_t begin, end;            // that some row may see
  int32_t full_begin, full_end;  // that every row sees
};

// A dense item under one kv head, as resolved from live lengths by the loading warp.
struct DenseTask {
  int32_t num_tiles;  // -1: no more tasks
  int32_t first;      // kv index of the first tile's first token, a multiple of Config::kDenseAlignment
  TaskRange range;
  int32_t page_begin, kv_head, rows, reserved;
};

struct alignas(16) DenseSlot {
  DenseTask task;
  alignas(16) ItemRow rows[kDenseRows];
};

// The rest of a warpgroup's task whose tickets are due.
struct DenseArrivals {
  ArrivedRow rows[kWarpgroupRows];
  int32_t kv_head;
};

inline constexpr int kSharedRows = kSharedStates / 2;  // a row has two states or more
inline constexpr int32_t kOwnState = -1;               // among the shared states: the task's own

struct StreamTask {
  int32_t first;  // kv index of the first token of the warp's first step, a multiple of Config::kStreamAlignment
  TaskRange range;
  int32_t head_begin, head_end;  // head_end is -1: no more tasks
  int32_t rows, page_begin;
  int32_t pages_from;  // of the slot's pages, which are those of the branch from this one on, or, in gather.cuh, of kv indices
  bool read_once;      // no other task reads its KV
  // States of a row and kv head in shared memory; they lie by kv head, row and place in the path. 1: the warp's own, of a
  // cooperative task. More: all others of the task's set have arrived, so the warp fetches theirs and folds them.
  uint8_t shared_of_row;
  uint8_t shared_phase;  // of shared_ready
  uint16_t own;          // bit i: shared state i is the task's own
};

inline constexpr int kPagesHeld = 32;  // page indices that a slot holds, and a stream warp, a lane each

struct alignas(16) StreamSlot {
  union {
    RowInfo rows[kStreamRows];
    struct {
      RowInfo shared_rows[kSharedRows];      // of a task that holds states
      int32_t shared_states[kSharedStates];  // those to fetch, or kOwnState
    };
  };
  StreamTask task;
  int32_t pages[kPagesHeld];
};

// One stream warp's tasks, as resolved by a warp of the loading warpgroup.
template <class C>
struct StreamState {
  StreamSlot slots[C::kStreamSlots];
  uint64_t wanted[C::kStreamSlots], known[C::kStreamSlots];  // a slot is free and the worker will need it; it is filled
  uint64_t ready[C::kStreamSteps][2];                        // K, V
  uint64_t shared_ready;                                     // the states that the warp fetches are there
};

// The states that a stream warp holds: its own, and those it fetches while it reads KV.
template <class C>
struct alignas(16) SharedStates {
  float acc[kSharedStates][C::kHeadDim];
  float2 ml[kSharedStates];
};

// Deterministic mode: the scores of a unit, which a stream warp keeps until it knows the largest.
template <class C>
struct UnitScores {
  static constexpr int kBlocks = C::kDeterministic ? kHopperDeterministicUnit / 16 : 1;
  float4 of_lane[kBlocks][32];
};

// An overlapped tile's task and its rows.
struct alignas(16) OverlappedSlot {
  RowInfo rows[kOverlappedRows];
  StreamTask task;
  int32_t pages[kPagesHeld];
};

// Shared memory of the overlapped tiles, while dense tiles are computed.
template <class C>
struct OverlappedStorage {
  // K and V of a step after each other, in a ring: [8 tokens][chunk][8][64], swizzled.
  alignas(1024) uint8_t units[C::kOverlappedUnits][C::kOverlappedUnitBytes];
  alignas(1024) uint8_t q[kOverlappedRows * C::kHeadDim * 2];                 // [chunk][8 rows][64], swizzled
  alignas(1024) uint8_t weights[kOverlappedRows * C::kOverlappedTokens * 2];  // [8 rows][64 tokens], swizzled
  float of_warp[4][kOverlappedRows];                                          // maxima or sums by warp
  float rescale[kOverlappedRows];                                             // see OverlappedTile::MoveReferences
  OverlappedSlot slots[C::kOverlappedSlots];
  uint64_t known[C::kOverlappedSlots], done[C::kOverlappedSlots];  // a task is looked up; its slot is free
  uint64_t ready[C::kOverlappedUnits], free[C::kOverlappedUnits];
  uint64_t q_ready;
  uint64_t stored, noted;  // a head's states are stored; the warp that draws its tickets has seen it
  // Of the CTA's dense tiles, for the warp that looks for an overlapped task: no task is left to draw; tokens of all tasks drawn,
  // and of those copied.
  volatile int32_t dense_drawn_out, dense_tokens, dense_tokens_copied;
  volatile int32_t tokens_copied;  // of all overlapped tiles, heads counted one by one
};
template <class C, bool kOverlapsDecode = C::kOverlapsDecode>
struct SharedStorage {
  union {
    struct {
      alignas(1024) uint8_t q[C::kQBuffers][C::kQTileBytes];  // [warpgroup][chunk][64 rows][64], swizzled
      alignas(1024) uint8_t k[C::kStages][C::kKvTileBytes];   // [8 tokens][chunk][8][64], swizzled
      alignas(1024) uint8_t v[C::kStages][C::kKvTileBytes];
    };
    struct {
      alignas(1024) uint8_t rings[C::kStreamWarps][C::kStreamSteps][2][C::kStreamUnitBytes];  // K, V
      union {
        SharedStates<C> shared_states[C::kStreamWarps];
        UnitScores<C> scores[C::kStreamWarps];
      };
    };
  };

  DenseSlot dense[C::kTaskSlots];
  StreamState<C> stream[C::kStreamWarps];
  DenseArrivals arrivals[kDenseWarpgroups];
  uint8_t completes[kDenseRows];  // by row: it begins a set whose last ticket this warpgroup drew

  uint64_t task_known[C::kTaskSlots], q_ready[C::kQBuffers], task_done[C::kTaskSlots];
  uint64_t k_ready[C::kStages], k_free[C::kStages], v_ready[C::kStages], v_free[C::kStages];
  int32_t drawers_done;
};

// With overlapped tiles, whose memory becomes that of the stream warps when they are over.
template <class C>
struct SharedStorage<C, true> {
  // The rest of the dense tiles' memory lies behind both.
  static constexpr size_t kOverlappedEnd = C::kQBuffers * C::kQTileBytes + 2 * C::kStages * C::kKvTileBytes +
                                           offsetof(OverlappedStorage<C>, tokens_copied) +
                                           sizeof(OverlappedStorage<C>::tokens_copied);
  static constexpr size_t kStreamEnd =
      C::kStreamWarps * (C::kStreamSteps * 2 * C::kStreamUnitBytes + sizeof(SharedStates<C>) + sizeof(StreamState<C>));
  static constexpr size_t kBehind = ((kOverlappedEnd > kStreamEnd ? kOverlappedEnd : kStreamEnd) + 15) / 16 * 16;
  union {
    struct {
      alignas(1024) uint8_t q[C::kQBuffers][C::kQTileBytes];
      alignas(1024) uint8_t k[C::kStages][C::kKvTileBytes];
      alignas(1024) uint8_t v[C::kStages][C::kKvTileBytes];
      OverlappedStorage<C> overlapped;
    };
    struct {
      alignas(1024) uint8_t rings[C::kStreamWarps][C::kStreamSteps][2][C::kStreamUnitBytes];
      SharedStates<C> shared_states[C::kStreamWarps];
      StreamState<C> stream[C::kStreamWarps];
    };
    struct {
      uint8_t before[kBehind];
      DenseSlot dense[C::kTaskSlots];
      DenseArrivals arrivals[kDenseWarpgroups];
      uint8_t completes[kDenseRows];
      uint64_t task_known[C::kTaskSlots], task_done[C::kTaskSlots];
      uint64_t k_ready[C::kStages], k_free[C::kStages], v_ready[C::kStages], v_free[C::kStages];
      int32_t drawers_done;
    };
  };
};

// Named barriers; 0 is the CTA's.
enum BarrierId : int {
  kTurnBarrier = 1 /* and 2 */,
  kWarpgroupBarrier = 3 /* and 4 */,
  kDenseOverBarrier = 5,
  kDenseLoadedBarrier,
  kCooperativeBarrier,
  kOverlappedBarrier,
  kOverlappedOverBarrier
};

}  // namespace coppice::attention::cuda
