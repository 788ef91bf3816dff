// Where the arrays of a plan lie in one block of memory, the same on host and device, and how much each may hold. Writes nothing
// (plan_translator.cc does). Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/plan_device.h"
#include "attention/plan_units.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// Byte offsets of the arrays, and how many of each there may be: enough for every plan within `sizes`. A range with n merge sets of
// one row or more that is cut into p pieces takes at least n * p states of own_states under each kv head, and adds less than n * p
// contributions; a member is a contribution seen from its item, and a block of rows begins at a member. Members and contributions
// stand where the plan has them or, in places that the plan knows nothing of, behind all of those (PlanPlaces).
struct PlanLayout {
  PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms);

  int64_t own_states;  // beside the plan's, for pieces
  int64_t max_items, max_members, max_tasks, max_contributions, max_states;
  size_t header, dense_tasks, stream_tasks, members, contributions, branches, page_indices, tree_mask;
  size_t bytes;
};

// The array at `offset` of an image.
template <class T>
T* At(std::byte* image, size_t offset) {
  return reinterpret_cast<T*>(image + offset);
}

// Of what two images hold. Field by field: most are compared just after they were written, field by field too.
constexpr bool operator==(const DeviceContribution& a, const DeviceContribution& b) {
  return a.state_begin == b.state_begin && a.head_stride == b.head_stride && a.begins_superblock == b.begins_superblock;
}
constexpr bool operator==(const DeviceMember& a, const DeviceMember& b) {
  return a.set == b.set && a.branch == b.branch && a.query_begin == b.query_begin && a.state_begin == b.state_begin &&
         a.head_stride == b.head_stride && a.contribution_begin == b.contribution_begin &&
         a.contribution_count == b.contribution_count && a.query_count == b.query_count && a.row_begin == b.row_begin &&
         a.arrivals == b.arrivals;
}
constexpr bool operator==(const DeviceItem& a, const DeviceItem& b) {
  return a.kv_begin == b.kv_begin && a.kv_end == b.kv_end && a.page_begin == b.page_begin && a.branch == b.branch &&
         a.member_begin == b.member_begin && a.member_count == b.member_count && a.rows == b.rows && a.dense == b.dense &&
         a.read_once == b.read_once && a.masked == b.masked && a.rows_per_member == b.rows_per_member &&
         a.head_begin == b.head_begin && a.head_count == b.head_count;
}
constexpr bool operator==(const Task& a, const Task& b) { return a.item == b.item && a.first == b.first; }

// Places behind the plan's members and contributions begin at a multiple of so many, so that a few more move none of it.
inline constexpr int64_t kPlacesUnit = 256;

// The step for which i -> (i * step mod 2^32) * n / 2^32 permutes 0 .. n - 1 such that any run of consecutive numbers comes from
// places evenly spread. n: below 2^16.
uint32_t SpreadStep(int32_t n);

// Contributions of a merge set before ranges are cut along KV (deterministic mode: by the planner itself): with all of them cut
// into the most pieces, the kernel's counters suffice.
constexpr int32_t MaxPlannedContributions(const AttentionSpec& spec) {
  return static_cast<int32_t>(kMaxSetContributions / (spec.deterministic ? 1 : kMostPieces));
}

}  // namespace coppice::attention::cuda
