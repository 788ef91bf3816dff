// Tensor maps: how the bulk copy engine finds the pages of one layer's K or V. Layer: attention/cuda.
#pragma once

#include <cuda.h>

#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// One layer's K and V for the kernels, with what LoadBox needs to make coordinates. Of small pages a box is eight tokens of pages
// that lie one after the other, and page and kv head are coordinates of their own (CopyTokens).
struct TensorMaps {
  CUtensorMap k, v;
  int32_t units_per_page, units_per_head;  // coordinate of (page, kv head) in the last dimension that is longer than one
  int32_t box_tokens;
  bool split_boxes;  // boxes of 8 tokens x 64 elements, because head_dim is not a multiple of 64
};

// UNIMPLEMENTED for strides that the kernels cannot take. kernel_head_dim: head_dim after padding.
Result<TensorMaps> EncodeTensorMaps(const AttentionSpec& spec, const KvLayerView& view, int kernel_head_dim);

}  // namespace coppice::attention::cuda
