#include "ops/cuda/cuda_weight.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <numeric>
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
    if (std::holds_alternative<BlocksFormat>(part.format))
      return InvalidArgument("a part in the blocks of a quantised file; convert it");
  }
  if (order == PartOrder::kGateUp && (parts.size() != 2 || parts[0].rows != parts[1].rows)) {
    return InvalidArgument("gate and up are " + std::to_string(parts.size()) + " parts of " + std::to_string(parts.front().rows) +
                           " and " + std::to_string(parts.back().rows) + " rows, expected two of equal rows");
  }
  return OkStatus();
}

// Where rows of a part go: `groups` times `count` rows, from which the next ones are kGateGroup rows away, to which two of them;
// and that for each of `heads`, which are `head_rows` apart in both.
struct RowRun {
  int64_t from = 0, to = 0, count = 0, groups = 1, heads = 1, head_rows = 0;
};

// Called for runs that cover all rows of a part.
using VisitRun = std::function<Status(const RowRun& run)>;

Status ForEachGateUpRun(size_t index, int64_t rows, const VisitRun& visit) {
  const int64_t groups = rows / kGateGroup, from = groups * kGateGroup, to = static_cast<int64_t>(index) * kGateGroup;
  COPPICE_RETURN_IF_ERROR(visit({.to = to, .count = kGateGroup, .groups = groups}));
  return visit({.from = from, .to = 2 * from + to, .count = rows - from});
}

bool GroupsPairs(std::span<const LinearPart> parts, const QkvHeads* heads) {
  return heads != nullptr && heads->pairs == RopePairs::kHalves && heads->rotary_dim > 0 &&
         heads->rotary_dim % (2 * kGateGroup) == 0 && heads->head_dim % (2 * kGateGroup) == 0 &&
         std::ranges::all_of(parts, [&](const LinearPart& part) { return part.rows % heads->head_dim == 0; });
}

Status ForEachQkvRun(int64_t before, int64_t rows, const QkvHeads& heads, const VisitRun& visit) {
  const bool is_rotated = before / heads.head_dim < heads.num_qo_heads + heads.num_kv_heads;  // q and k; v comes last
  if (!is_rotated) return visit({.to = before, .count = rows});
  const int64_t half = heads.rotary_dim / 2;
  const RowRun first = {
      .to = before, .count = kGateGroup, .groups = half / kGateGroup, .heads = rows / heads.head_dim, .head_rows = heads.head_dim};
  RowRun second = first, rest = first;
  second.from += half;
  second.to += kGateGroup;
  rest.from += heads.rotary_dim;
  rest.to += heads.rotary_dim;
  rest.count = heads.head_dim - heads.rotary_dim;
  rest.groups = 1;
  for (const RowRun& run : {first, second, rest}) COPPICE_RETURN_IF_ERROR(visit(run));
  return OkStatus();
}

// Groups in one strided copy, those of all heads where rows follow each other without gaps: a call for each would take
// milliseconds.
Status CopyRun(std::byte* to, size_t to_pitch, const void* from, size_t from_pitch, const RowRun& run, const char* what) {
  if (run.count == 0 || run.groups == 0) return OkStatus();
  std::byte* const begin = to + run.to * to_pitch;
  const std::byte* const source = static_cast<const std::byte*>(from) + run.from * from_pitch;
  if (run.groups == 1 && run.heads == 1) {
    return coppice::cuda::CudaStatus(
        cudaMemcpy2D(begin, to_pitch, source, from_pitch, from_pitch, static_cast<size_t>(run.count), cudaMemcpyDefault), what);
  }
  cudaMemcpy3DParms copy{};
  copy.kind = cudaMemcpyDefault;
  if (from_pitch == to_pitch && run.count <= kGateGroup && run.head_rows % (2 * kGateGroup) == 0) {  // a group is a line
    const size_t group_bytes = run.count * from_pitch, step = kGateGroup * from_pitch;
    const int64_t groups_apart = run.heads > 1 ? run.head_rows / kGateGroup : run.groups;
    copy.srcPtr = make_cudaPitchedPtr(const_cast<std::byte*>(source), step, group_bytes, groups_apart);
    copy.dstPtr = make_cudaPitchedPtr(begin, 2 * step, group_bytes, run.heads > 1 ? groups_apart / 2 : groups_apart);
    copy.extent = make_cudaExtent(group_bytes, static_cast<size_t>(run.groups), static_cast<size_t>(run.heads));
    return coppice::cuda::CudaStatus(cudaMemcpy3D(&copy), what);
  }
  if (run.heads > 1) {
    RowRun head = run;
    head.heads = 1;
    for (int64_t i = 0; i < run.heads; ++i, head.from += run.head_rows, head.to += run.head_rows)
      COPPICE_RETURN_IF_ERROR(CopyRun(to, to_pitch, from, from_pitch, head, what));
    return OkStatus();
  }
  copy.srcPtr = make_cudaPitchedPtr(const_cast<std::byte*>(source), from_pitch, from_pitch, kGateGroup);
  copy.dstPtr = make_cudaPitchedPtr(begin, to_pitch, to_pitch, 2 * kGateGroup);
  copy.extent = make_cudaExtent(from_pitch, static_cast<size_t>(run.count), static_cast<size_t>(run.groups));
  return coppice::cuda::CudaStatus(cudaMemcpy3D(&copy), what);
}

}  // namespace

Result<std::unique_ptr<CudaWeight>> CudaWeight::Create(Device* device, DType dtype, int64_t in_features,
                                                       std::span<const LinearPart> parts, PartOrder order, const QkvHeads* heads) {
  COPPICE_RETURN_IF_ERROR(CheckParts(in_features, parts, order));
  const coppice::cuda::DeviceGuard guard(device->ordinal());
  std::unique_ptr<CudaWeight> weight(new CudaWeight());
  weight->ordinal_ = device->ordinal();
  weight->is_gated_ = order == PartOrder::kGateUp;
  if (GroupsPairs(parts, heads)) weight->heads_ = *heads;
  weight->dtype_ = dtype;
  weight->in_features_ = in_features;
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    weight->part_rows_.push_back(part.rows);
    weight->out_features_ += part.rows;
    has_bias |= part.bias != nullptr;
  }
  if (weight->is_gated_) weight->out_features_ = parts.front().rows;
  weight->rows_ = weight->is_gated_ ? 2 * RoundUp<int64_t>(weight->out_features_, kGateGroup) : weight->out_features_;
  weight->tiles_ = CeilDiv<int64_t>(weight->rows_, kWeightTileRows);
  weight->stride_ = RoundUp<int64_t>(in_features, kWeightChunkCols);

  const size_t stride_bytes = static_cast<size_t>(weight->stride_) * SizeOf(dtype);
  COPPICE_ASSIGN_OR_RETURN(weight->weight_,
                           device->Allocate(weight->tiles_ * kWeightTileRows * stride_bytes, MemoryKind::kWeights));
  if (has_bias) {
    COPPICE_ASSIGN_OR_RETURN(weight->bias_, device->Allocate(static_cast<size_t>(weight->tiles_) * kWeightTileRows * sizeof(float),
                                                             MemoryKind::kWeights));
  }
  for (size_t i = 0; i < parts.size(); ++i) COPPICE_RETURN_IF_ERROR(weight->CopyPart(parts[i], i));
  // Pageable memory was read when a copy returned, but the last piece may still be on its way to streams that do not wait.
  COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(cudaStreamSynchronize(nullptr), "copying a weight to the device"));
  return Result<std::unique_ptr<CudaWeight>>(std::move(weight));
}

Status CudaWeight::CopyPart(const LinearPart& part, size_t index) {
  const size_t row_bytes = static_cast<size_t>(in_features_) * SizeOf(dtype_);
  const size_t stride_bytes = static_cast<size_t>(stride_) * SizeOf(dtype_);
  const auto copy = [&](const RowRun& run) -> Status {
    if (part.bias != nullptr) {
      COPPICE_RETURN_IF_ERROR(CopyRun(bias_.data(), sizeof(float), part.bias, sizeof(float), run, "copying a bias to the device"));
    }
    if (part.weight == nullptr) return OkStatus();
    return CopyRun(weight_.data(), stride_bytes, part.weight, row_bytes, run, "copying a weight to the device");
  };
  if (is_gated_) return ForEachGateUpRun(index, part.rows, copy);
  const int64_t before = std::accumulate(part_rows_.begin(), part_rows_.begin() + static_cast<std::ptrdiff_t>(index), int64_t{0});
  if (heads_) return ForEachQkvRun(before, part.rows, *heads_, copy);
  return copy({.to = before, .count = part.rows});
}

Status CudaWeight::Repack(const LinearPart& with, size_t part) {
  COPPICE_RETURN_IF_ERROR(CheckRepack(*this, with, part, bias() != nullptr));
  const coppice::cuda::DeviceGuard guard(ordinal_);
  return CopyPart(with, part);
}

}  // namespace coppice::ops::cuda
