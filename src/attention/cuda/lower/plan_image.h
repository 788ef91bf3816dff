// Where the arrays of a plan lie in one block of memory, the same on host and device, and how much each may hold. Writes nothing
// (plan_translator.cc does). Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// Byte offsets of the arrays, and how many of each there may be.
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

// The step for which i -> (i * step mod 2^32) * n / 2^32 permutes 0 .. n - 1 such that any run of consecutive numbers comes from
// places evenly spread. n: below 2^16.
uint32_t SpreadStep(int32_t n);

// RESOURCE_EXHAUSTED: more of `what` than the sizes given at creation allow.
Status Exceeded(const char* what, int64_t have, int64_t most);

}  // namespace coppice::attention::cuda
