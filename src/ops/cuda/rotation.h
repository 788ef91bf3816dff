// Where the heads of one layer's projections go, and what those of q and k are rotated by: for the pass that does it over rows in
// memory and for the product that does it with its sums. Layer: ops/cuda.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace coppice::ops::cuda {

struct RotationParams {
  const int64_t* slots = nullptr;  // null: nothing is rotated or stored
  const float *cos = nullptr, *sin = nullptr;
  int64_t cos_stride = 0, sin_stride = 0;
  int32_t rotated_pairs = 0;  // of a head
  bool in_groups = false;     // the halves of rotated heads alternate in groups of kGateGroup
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;
  void* q = nullptr;
  int64_t q_stride = 0;
  void *k = nullptr, *v = nullptr;
  int64_t page_stride = 0, head_stride = 0, slot_stride = 0;
  int32_t page_size = 1;

  // `in_groups`: rows of the projections are those of a weight that groups_pairs.
  static RotationParams Of(const RopeAppendArgs& args, bool in_groups) {
    return {.slots = args.slot_mapping.data,
            .cos = static_cast<const float*>(args.cos.data),
            .sin = static_cast<const float*>(args.sin.data),
            .cos_stride = args.cos.stride,
            .sin_stride = args.sin.stride,
            .rotated_pairs = static_cast<int32_t>(args.cos.cols),
            .in_groups = in_groups,
            .num_qo_heads = args.num_qo_heads,
            .num_kv_heads = args.num_kv_heads,
            .head_dim = args.head_dim,
            .q = args.q.data,
            .q_stride = args.q.stride,
            .k = args.kv.k,
            .v = args.kv.v,
            .page_stride = args.kv.page_stride,
            .head_stride = args.kv.head_stride,
            .slot_stride = args.kv.slot_stride,
            .page_size = args.kv.page_size};
  }

#ifdef __CUDACC__
  __device__ bool IsV(int head) const { return head >= num_qo_heads + num_kv_heads; }

  // Where a row's K and V begin in the pages, in elements from the first head; negative: they are not kept.
  __device__ int64_t BeginInPages(int64_t row) const {
    const int64_t slot = slots[row];
    return slot < 0 ? -1 : slot / page_size * page_stride + slot % page_size * slot_stride;
  }

  // Where a row's head goes, heads of q, k and v counted through; null: it is not kept. `in_pages`: as BeginInPages says, read for
  // heads of k and v alone.
  template <class T>
  __device__ T* BeginOfHead(int64_t row, int head, int64_t in_pages) const {
    if (head < num_qo_heads) return static_cast<T*>(q) + row * q_stride + int64_t{head} * head_dim;
    if (in_pages < 0) return nullptr;
    const int kv_head = head - num_qo_heads - (IsV(head) ? num_kv_heads : 0);
    return static_cast<T*>(IsV(head) ? v : k) + in_pages + kv_head * head_stride;
  }
  template <class T>
  __device__ T* BeginOfHead(int64_t row, int head) const {
    return BeginOfHead<T>(row, head, head < num_qo_heads ? 0 : BeginInPages(row));
  }
#endif
};

}  // namespace coppice::ops::cuda
