#include "attention/cuda/tensor_map.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "attention/cuda/device_memory.h"
#include "attention/cuda/kernel_config.h"
#include "core/check.h"
#include "core/cuda/tensor_map_encoder.h"

namespace coppice::attention::cuda {
Result<TensorMaps> EncodeTensorMaps(const AttentionSpec& spec, const KvLayerView& view, int kernel_head_dim) {
  COPPICE_ASSIGN_OR_RETURN(const coppice::cuda::EncodeTensorMap encode, coppice::cuda::FindTensorMapEncoder());
  constexpr int64_t kElement = 2;
  // (page, kv head) is one dimension, in units of the strides' common divisor.
  const int64_t head_stride = spec.num_kv_heads > 1 ? view.head_stride : view.page_stride;
  const bool positive = view.page_stride > 0 && head_stride > 0 && view.slot_stride > 0;
  const int64_t unit = positive ? std::gcd(view.page_stride, head_stride) : 1;
  const int64_t units_per_page = view.page_stride / unit, units_per_head = head_stride / unit;
  const int64_t units = (view.num_pages - 1) * units_per_page + (spec.num_kv_heads - 1) * units_per_head + 1;
  if (!positive || unit * kElement % 16 != 0 || view.slot_stride * kElement % 16 != 0 || units <= 0 || units > INT32_MAX) {
    return Unimplemented(
        "KV layer: page_stride = " + std::to_string(view.page_stride) + ", head_stride = " + std::to_string(view.head_stride) +
        ", slot_stride = " + std::to_string(view.slot_stride) + " elements; the CUDA backend expects positive multiples of 8");
  }
  TensorMaps maps{.units_per_page = static_cast<int32_t>(units_per_page),
                  .units_per_head = static_cast<int32_t>(units_per_head),
                  .box_tokens = std::min(view.page_size, kBoxTokens),
                  .split_boxes = spec.head_dim != kernel_head_dim};
  const auto u64 = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const auto u32 = [](int64_t x) { return static_cast<cuuint32_t>(x); };
  // Innermost first; shared memory receives a box in this order: [8 tokens][chunk of 64 elements][token][element].
  const cuuint64_t whole_size[5] = {64, 8, u64(kernel_head_dim / 64), u64(view.page_size / 8), u64(units)};
  const cuuint64_t whole_stride[4] = {u64(view.slot_stride * kElement), 64 * kElement, u64(8 * view.slot_stride * kElement),
                                      u64(unit * kElement)};
  const cuuint32_t whole_box[5] = {64, 8, u32(kernel_head_dim / 64), u32(maps.box_tokens / 8), 1};
  // A padded head_dim: elements past its end are out of bounds and become zeros.
  const cuuint64_t split_size[5] = {u64(spec.head_dim), 8, u64(view.page_size / 8), u64(units), 1};
  const cuuint64_t split_stride[4] = {u64(view.slot_stride * kElement), u64(8 * view.slot_stride * kElement), u64(unit * kElement),
                                      u64(unit * kElement)};
  const cuuint32_t split_box[5] = {64, 8, 1, 1, 1};
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  const auto type = spec.kv_dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  for (const auto& [map, base] : {std::pair{&maps.k, view.k}, std::pair{&maps.v, view.v}}) {
    const CUresult result =
        encode(map, type, 5, base, maps.split_boxes ? split_size : whole_size, maps.split_boxes ? split_stride : whole_stride,
               maps.split_boxes ? split_box : whole_box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
      return Unimplemented("KV layer: the driver refuses a tensor map (error " + std::to_string(result) +
                           "); expected 16-byte aligned k and v and strides below 2^40 bytes");
    }
  }
  return maps;
}

}  // namespace coppice::attention::cuda
