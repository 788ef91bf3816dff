// The plan as the kernel reads it: written by plan_translator.cc from a PlanView and a forest, read by dense_tile, stream_tile and
// merge. Plain structs of 32-bit fields, loaded 16 bytes at a time; no CUDA types, so that the translation is testable without a
// GPU. Layer: attention/cuda.
#pragma once

#include <cstdint>

namespace coppice::attention::cuda {

inline constexpr int kDenseRows = 128;            // rows of a dense tile: two warpgroups of 64 (wgmma's M)
inline constexpr int kOverlappedRows = 8;         // most rows of an overlapped tile: wgmma's least N
inline constexpr int kOverlappedStepTokens = 64;  // tokens of its step: wgmma's M
inline constexpr int kStreamRows = 16;            // most rows of a stream tile: two n8 blocks of mma.sync
// Most states that a stream warp has in shared memory, as many as the lanes that look a task up: those of its task's set, to fold
// them, or, of a cooperative task, the warp's part, one a row.
inline constexpr int kSharedStates = kStreamRows;
constexpr int StreamRows(bool deterministic) { return deterministic ? 8 : kStreamRows; }  // deterministic_stream_tile.cuh says why
// Contributions of a merge set: each draws a ticket for each warpgroup that holds rows of the set, two at most, and their number
// (DeviceMember::arrivals) has 16 bits.
inline constexpr int32_t kMaxSetContributions = UINT16_MAX / 2;
inline constexpr int32_t kDirect = -1;  // in place of a state index: the item is its set's only contribution and writes the output

// Rewritten by every Upload, read at the start of a launch.
struct PlanHeader {
  int32_t num_dense_tasks, num_stream_tasks;
  int32_t num_members, num_contributions, num_branches;  // of the first two: places, some of which no task reads
  int32_t num_queries;                                   // of q and out
  uint8_t has_tree_mask;
  uint8_t overlapped;    // 1: CTAs with dense tasks take stream tasks meanwhile, of kOverlappedRows rows at most, none cooperative
  uint16_t cooperative;  // 1: the stream warps of a CTA read each stream task together; one kv head a task, no dense tasks
  int32_t dense_ctas;    // CTAs from this on take no dense task, so that streams overlap with the dense tiles from the start
};

// A plan item, or a piece of one: a part of its KV range, at most kDenseRows of its rows.
struct alignas(16) DeviceItem {
  int32_t kv_begin, kv_end;  // kv_end is cut to the live length of `branch` on the device
  int32_t page_begin;        // of the page row that it reads
  int32_t branch;            // whose page row that is
  int32_t member_begin;
  uint16_t member_count, rows;
  uint8_t dense : 1;                // 1: for a dense tile; 0: for a stream tile
  uint8_t read_once : 1;            // no other task reads its KV
  uint8_t masked;                   // some row may not see the whole range
  uint16_t rows_per_member;         // 0: they differ
  uint16_t head_begin, head_count;  // kv heads of the task; of the item itself: all
};
static_assert(sizeof(DeviceItem) == 32);

// A merge set's place in an item.
struct alignas(16) DeviceMember {
  int32_t set, branch, query_begin;
  int32_t state_begin;         // of row 0 under kv head 0, or kDirect
  int32_t head_stride;         // states from one kv head to the next
  int32_t contribution_begin;  // the set's contributions
  uint16_t contribution_count;
  uint16_t query_count;
  uint16_t row_begin;  // in the item
  uint16_t arrivals;   // tickets that complete the set under one kv head: one per warpgroup that holds rows of it, over all items
};
static_assert(sizeof(DeviceMember) == 32);

// A worker's draw from a queue: an item under some kv heads, with its first member at hand, so that the common item of one
// member needs no second look.
struct Task {
  DeviceItem item;
  DeviceMember first;
};
static_assert(sizeof(Task) == 64);

// Of one item, or piece of one, to a merge set; those of a set stand together, in path order.
struct alignas(8) DeviceContribution {
  int32_t state_begin;
  uint32_t head_stride : 31;
  uint32_t begins_superblock : 1;  // deterministic mode: its range begins with a superblock
};
static_assert(sizeof(DeviceContribution) == 8);

// The part that changes with every step.
struct alignas(16) DeviceBranch {
  int32_t kv_len, query_begin, query_count, page_begin;
};

// Zero between launches.
struct QueueCounters {
  int32_t dense_next, stream_next, finished_ctas, reserved;
};

}  // namespace coppice::attention::cuda
