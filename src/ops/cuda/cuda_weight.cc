#include "ops/cuda/cuda_weight.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/math.h"

namespace coppice::ops::cuda {
namespace {

Status CheckParts(int64_t in_features, std::span<const LinearPart> parts, PartOrder order) {
  if (in_features <= 0) return InvalidArgument("a weight of " + std::to_string(in_features) + " inputs, expected at least 1");
  if (parts.empty()) return InvalidArgument("a weight of no parts, expected at least one");
  for (const LinearPart& part : parts) {
    if (part.rows <= 0) return InvalidArgument("a part of " + std::to_string(part.rows) + " rows, expected at least 1");
  }
  if (order == PartOrder::kGateUp && (parts.size() != 2 || parts[0].rows != parts[1].rows)) {
    return InvalidArgument("gate and up are " + std::to_string(parts.size()) + " parts of " + std::to_string(parts.front().rows) +
                           " and " + std::to_string(parts.back().rows) + " rows, expected two of equal rows");
  }
  return OkStatus();
}

// Where rows [begin, begin + count) of a part go.
struct RowRun {
  int64_t from = 0, to = 0, count = 0;
};

// Calls visit(part, run) for runs that cover all rows of all parts.
template <class Visit>
Status ForEachRun(std::span<const LinearPart> parts, PartOrder order, Visit visit) {
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (order == PartOrder::kConcatenated) {
      COPPICE_RETURN_IF_ERROR(visit(parts[i], RowRun{.from = 0, .to = row, .count = parts[i].rows}));
      row += parts[i].rows;
      continue;
    }
    for (int64_t from = 0; from < parts[i].rows; from += kGateGroup) {
      const int64_t to = 2 * from + static_cast<int64_t>(i) * kGateGroup;
      const int64_t count = std::min<int64_t>(kGateGroup, parts[i].rows - from);
      COPPICE_RETURN_IF_ERROR(visit(parts[i], RowRun{.from = from, .to = to, .count = count}));
    }
  }
  return OkStatus();
}

// All full groups of a part in one strided copy; a call for each would take milliseconds.
Status CopyGroups(const DeviceMemory& weight, const LinearPart& part, size_t index, size_t row_bytes, size_t stride_bytes) {
  const int64_t groups = part.rows / kGateGroup;
  if (groups == 0) return OkStatus();
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(const_cast<void*>(part.weight), row_bytes, row_bytes, kGateGroup);
  copy.dstPtr = make_cudaPitchedPtr(weight.data() + index * kGateGroup * stride_bytes, stride_bytes, stride_bytes, 2 * kGateGroup);
  copy.extent = make_cudaExtent(row_bytes, kGateGroup, static_cast<size_t>(groups));
  copy.kind = cudaMemcpyHostToDevice;
  return coppice::cuda::CudaStatus(cudaMemcpy3D(&copy), "copying gate and up to the device");
}

}  // namespace

Result<std::unique_ptr<CudaWeight>> CudaWeight::Create(Device* device, DType dtype, int64_t in_features,
                                                       std::span<const LinearPart> parts, PartOrder order) {
  COPPICE_RETURN_IF_ERROR(CheckParts(in_features, parts, order));
  const coppice::cuda::DeviceGuard guard(device->ordinal());
  std::unique_ptr<CudaWeight> weight(new CudaWeight());
  weight->is_gated_ = order == PartOrder::kGateUp;
  weight->dtype_ = dtype;
  weight->in_features_ = in_features;
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    weight->out_features_ += part.rows;
    has_bias |= part.bias != nullptr;
  }
  if (weight->is_gated_) weight->out_features_ = parts.front().rows;
  weight->rows_ = weight->is_gated_ ? 2 * RoundUp<int64_t>(weight->out_features_, kGateGroup) : weight->out_features_;
  weight->tiles_ = CeilDiv<int64_t>(weight->rows_, kWeightTileRows);
  weight->stride_ = RoundUp<int64_t>(in_features, kWeightChunkCols);

  const size_t row_bytes = static_cast<size_t>(in_features) * SizeOf(dtype);
  const size_t stride_bytes = static_cast<size_t>(weight->stride_) * SizeOf(dtype);
  COPPICE_ASSIGN_OR_RETURN(weight->weight_, device->Allocate(weight->tiles_ * kWeightTileRows * stride_bytes));
  if (has_bias) {
    COPPICE_ASSIGN_OR_RETURN(weight->bias_,
                             device->Allocate(static_cast<size_t>(weight->tiles_) * kWeightTileRows * sizeof(float)));
  }
  for (size_t i = 0; weight->is_gated_ && i < parts.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(CopyGroups(weight->weight_, parts[i], i, row_bytes, stride_bytes));
  }
  const Status copied = ForEachRun(parts, order, [&](const LinearPart& part, const RowRun& run) {
    if (part.bias != nullptr) {
      COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(
          cudaMemcpy(weight->bias_.As<float>() + run.to, part.bias + run.from, run.count * sizeof(float), cudaMemcpyDefault),
          "copying a bias to the device"));
    }
    if (weight->is_gated_ && run.count == kGateGroup) return OkStatus();  // by CopyGroups
    return coppice::cuda::CudaStatus(cudaMemcpy2D(weight->weight_.data() + run.to * stride_bytes, stride_bytes,
                                                  static_cast<const std::byte*>(part.weight) + run.from * row_bytes, row_bytes,
                                                  row_bytes, static_cast<size_t>(run.count), cudaMemcpyHostToDevice),
                                     "copying a weight to the device");
  });
  COPPICE_RETURN_IF_ERROR(copied);
  // Pageable memory was read when a copy returned, but the last piece may still be on its way to streams that do not wait.
  COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(cudaStreamSynchronize(nullptr), "copying a weight to the device"));
  return Result<std::unique_ptr<CudaWeight>>(std::move(weight));
}

}  // namespace coppice::ops::cuda
