// A packed weight in device memory: one row-major matrix that the library's products, our own and the embedding all read. Rows are
// zero-padded to whole chunks of inputs, and zero rows fill the last tile. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "core/device.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

// Rows that are needed together alternate in groups of this many, so that a thread that holds one holds the other too, 16 bytes on:
// a gate and its up (kGateUp), and the two elements of a rotated pair (QkvHeads, kHalves).
inline constexpr int kGateGroup = 8;
inline constexpr int kWeightTileRows = 64;   // of our products (few_rows.cuh)
inline constexpr int kWeightChunkCols = 64;  // likewise: a line of 128 bytes

class CudaWeight final : public Weight {
 public:
  // `heads`: of Ops::PackQkv, else null. Elements that are rotated together then alternate in groups where a head is whole groups
  // of both (groups_pairs).
  static Result<std::unique_ptr<CudaWeight>> Create(Device* device, DType dtype, int64_t in_features,
                                                    std::span<const LinearPart> parts, PartOrder order, const QkvHeads* heads);

  // As of Ops::Repack.
  Status Repack(const LinearPart& with, size_t part);

  const void* data() const { return weight_.data(); }
  const float* bias() const { return bias_.As<float>(); }  // [rows()] or null
  int64_t stride() const { return stride_; }               // elements between rows
  int64_t rows() const { return rows_; }    // that a product computes: kGateUp, both parts, each padded to whole groups
  int64_t tiles() const { return tiles_; }  // of kWeightTileRows, padding included
  bool is_gated() const { return is_gated_; }
  // Element i of a rotated head's first half is row i / 8 * 16 + i % 8 of the head, its partner in the second half 8 rows on.
  bool groups_pairs() const { return heads_.has_value(); }

 private:
  CudaWeight() = default;
  // Copies a part's elements and its bias, as far as there are any, from memory of the host or of the device.
  Status CopyPart(const LinearPart& part, size_t index);

  int ordinal_ = 0;
  DeviceMemory weight_, bias_;
  std::optional<QkvHeads> heads_;  // of weights whose pairs are grouped
  int64_t stride_ = 0, rows_ = 0, tiles_ = 0;
  bool is_gated_ = false;
};

// A weight as products read it: a CudaWeight, or memory laid out as one.
struct WeightView {
  const void* data = nullptr;
  const float* bias = nullptr;  // as packed, or null
  DType dtype = DType::kBF16;
  int64_t n = 0, k = 0, stride = 0;  // packed rows, inputs, elements between rows
  int64_t out_features = 0;
  bool is_gated = false, groups_pairs = false;

  static WeightView Of(const CudaWeight& weight) {
    return {.data = weight.data(),
            .bias = weight.bias(),
            .dtype = weight.dtype(),
            .n = weight.rows(),
            .k = weight.in_features(),
            .stride = weight.stride(),
            .out_features = weight.out_features(),
            .is_gated = weight.is_gated(),
            .groups_pairs = weight.groups_pairs()};
  }
};

}  // namespace coppice::ops::cuda
