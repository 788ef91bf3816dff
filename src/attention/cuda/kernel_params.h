// The arguments of one launch, passed by value. Layer: attention/cuda.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <type_traits>

#include "attention/cuda/plan_device.h"

namespace coppice::attention::cuda {

struct KernelParams {
  const PlanHeader* header;
  const Task* dense_tasks;
  const Task* stream_tasks;
  const DeviceMember* members;
  const DeviceContribution* contributions;
  const DeviceBranch* branches;
  const int32_t* page_indices;
  const uint64_t* tree_mask;
  int32_t num_page_slots;  // of page_indices

  float* state_acc;  // [states][kernel's head_dim], not normalised
  float2* state_ml;  // [states]: max (base 2, scaled), sum
  int32_t* tickets;  // [merge set][kv head], or of cooperative tasks [row of q][query of the group][kv head]; zero between launches
  QueueCounters* counters;

  const void* q;
  void* out;
  float* lse;  // or null
  int64_t q_row_stride, out_row_stride;

  uint32_t spread_step;  // SpreadStep of half the grid
  int32_t num_kv_heads, group_size, head_dim;
  int32_t page_shift, page_size, box_tokens, box_shift;
  int32_t units_per_page, units_per_head;  // coordinate of (page, kv head) in the last dimension of the tensor maps
  int32_t split_boxes;                     // 1: head_dim is padded; a box is 8 tokens x 64 elements
  int32_t window;
  float score_scale_log2;  // scores times this are exponents of 2
  float cap_in;            // > 0: soft cap; scores become tanh(score * cap_in), and score_scale_log2 is that of the result
  float value_scale;
};

// Of the Hopper kernel in deterministic mode.
struct DeterministicParams : KernelParams {
  float* folds;  // KernelVariant::fold_bytes_per_cta of each CTA
};
// Of the Hopper kernel for pages of fewer than eight tokens: where a token's elements lie. Strides are in 16 bytes.
inline constexpr int kGatherUnit = 8;  // elements
struct GatherParams : KernelParams {
  const uint8_t *k, *v;
  int64_t head_stride;
  uint32_t page_stride, slot_stride;
};
template <class C>
using ParamsOf =
    std::conditional_t<C::kDeterministic, DeterministicParams, std::conditional_t<C::kGathers, GatherParams, KernelParams>>;

}  // namespace coppice::attention::cuda
