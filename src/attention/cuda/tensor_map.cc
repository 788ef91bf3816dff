#include "attention/cuda/tensor_map.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "attention/cuda/device_memory.h"
#include "attention/cuda/kernel_config.h"
#include "core/check.h"
#include "core/cuda/tensor_map_encoder.h"

namespace coppice::attention::cuda {
namespace {

constexpr int64_t kElement = 2;

cuuint64_t U64(int64_t x) { return static_cast<cuuint64_t>(x); }
cuuint32_t U32(int64_t x) { return static_cast<cuuint32_t>(x); }

// Innermost first; shared memory receives a box in this order. Strides in elements, of all dimensions but the first.
struct BoxShape {
  cuuint64_t size[5], stride[4];
  cuuint32_t box[5];
};

Status Unsuited(const KvLayerView& view, const std::string& expected) {
  return Unimplemented("KV layer: page_stride = " + std::to_string(view.page_stride) +
                       ", head_stride = " + std::to_string(view.head_stride) +
                       ", slot_stride = " + std::to_string(view.slot_stride) + " elements; the CUDA backend expects " + expected);
}

Status Encode(const KvLayerView& view, DType dtype, const BoxShape& shape, TensorMaps& maps) {
  COPPICE_ASSIGN_OR_RETURN(const coppice::cuda::EncodeTensorMap encode, coppice::cuda::FindTensorMapEncoder());
  cuuint64_t stride_bytes[4];
  std::ranges::transform(shape.stride, stride_bytes, [](cuuint64_t stride) { return stride * kElement; });
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  const auto type = dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  for (const auto& [map, base] : {std::pair{&maps.k, view.k}, std::pair{&maps.v, view.v}}) {
    const CUresult result =
        encode(map, type, 5, base, shape.size, stride_bytes, shape.box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
      return Unimplemented("KV layer: the driver refuses a tensor map (error " + std::to_string(result) +
                           "); expected 16-byte aligned k and v and strides below 2^40 bytes");
    }
  }
  return OkStatus();
}

// Of pages of fewer tokens than a box. A stride that nothing steps over may be anything but zero.
Result<TensorMaps> EncodeSmallPages(const AttentionSpec& spec, const KvLayerView& view, int kernel_head_dim) {
  const int64_t head_stride = spec.num_kv_heads > 1 ? view.head_stride : view.page_stride;
  const int64_t slot_stride = view.page_size > 1 ? view.slot_stride : view.page_stride;
  if (view.page_stride <= 0 || head_stride <= 0 || slot_stride <= 0 || (view.page_stride | head_stride | slot_stride) % 8 != 0) {
    return Unsuited(view, "positive multiples of 8");
  }
  if (int64_t{view.num_pages} * view.page_stride / 8 > UINT32_MAX) return Unsuited(view, "64 GB at most, with pages this small");
  TensorMaps maps{.box_tokens = kBoxedPageSize, .split_boxes = spec.head_dim != kernel_head_dim};
  const int64_t pages = kBoxedPageSize / view.page_size, chunks = kernel_head_dim / 64;
  const BoxShape whole = {
      .size = {64, U64(view.page_size), U64(view.num_pages), U64(chunks), U64(spec.num_kv_heads)},
      .stride = {U64(slot_stride), U64(view.page_stride), 64, U64(head_stride)},
      .box = {64, U32(view.page_size), U32(pages), U32(chunks), 1},
  };
  const BoxShape split = {
      .size = {U64(spec.head_dim), U64(view.page_size), U64(view.num_pages), U64(spec.num_kv_heads), 1},
      .stride = {U64(slot_stride), U64(view.page_stride), U64(head_stride), U64(head_stride)},
      .box = {64, U32(view.page_size), U32(pages), 1, 1},
  };
  COPPICE_RETURN_IF_ERROR(Encode(view, spec.kv_dtype, maps.split_boxes ? split : whole, maps));
  return maps;
}

}  // namespace

Result<TensorMaps> EncodeTensorMaps(const AttentionSpec& spec, const KvLayerView& view, int kernel_head_dim) {
  if (view.page_size < kBoxedPageSize) return EncodeSmallPages(spec, view, kernel_head_dim);
  // (page, kv head) is one dimension, in units of the strides' common divisor.
  const int64_t head_stride = spec.num_kv_heads > 1 ? view.head_stride : view.page_stride;
  const bool positive = view.page_stride > 0 && head_stride > 0 && view.slot_stride > 0;
  const int64_t unit = positive ? std::gcd(view.page_stride, head_stride) : 1;
  const int64_t units_per_page = view.page_stride / unit, units_per_head = head_stride / unit;
  const int64_t units = (view.num_pages - 1) * units_per_page + (spec.num_kv_heads - 1) * units_per_head + 1;
  if (!positive || unit * kElement % 16 != 0 || view.slot_stride * kElement % 16 != 0 || units <= 0 || units > INT32_MAX) {
    return Unsuited(view, "positive multiples of 8");
  }
  TensorMaps maps{.units_per_page = static_cast<int32_t>(units_per_page),
                  .units_per_head = static_cast<int32_t>(units_per_head),
                  .box_tokens = std::min(view.page_size, kBoxTokens),
                  .split_boxes = spec.head_dim != kernel_head_dim};
  // [8 tokens][chunk of 64 elements][token][element].
  const int64_t chunks = kernel_head_dim / 64;
  const BoxShape whole = {
      .size = {64, 8, U64(chunks), U64(view.page_size / 8), U64(units)},
      .stride = {U64(view.slot_stride), 64, U64(8 * view.slot_stride), U64(unit)},
      .box = {64, 8, U32(chunks), U32(maps.box_tokens / 8), 1},
  };
  // A padded head_dim: elements past its end are out of bounds and become zeros.
  const BoxShape split = {
      .size = {U64(spec.head_dim), 8, U64(view.page_size / 8), U64(units), 1},
      .stride = {U64(view.slot_stride), U64(8 * view.slot_stride), U64(unit), U64(unit)},
      .box = {64, 8, 1, 1, 1},
  };
  COPPICE_RETURN_IF_ERROR(Encode(view, spec.kv_dtype, maps.split_boxes ? split : whole, maps));
  return maps;
}

}  // namespace coppice::attention::cuda
