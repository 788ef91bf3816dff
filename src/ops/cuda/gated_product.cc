#include "ops/cuda/gated_product.h"

#include <algorithm>
#include <string>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/cuda/tensor_map_encoder.h"
#include "core/math.h"
#include "ops/cuda/gated_product_params.h"

namespace coppice::ops::cuda {
namespace {

// A matrix of 16-bit elements, its rows copied in boxes of so many rows and gated::kChunkCols columns; zeros beyond its ends.
Result<CUtensorMap> MapOf(DType dtype, const void* data, int64_t rows, int64_t cols, int64_t stride, uint32_t box_rows) {
  COPPICE_ASSIGN_OR_RETURN(const coppice::cuda::EncodeTensorMap encode, coppice::cuda::FindTensorMapEncoder());
  const cuuint64_t size[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[] = {gated::kChunkCols, box_rows}, element_strides[] = {1, 1};
  CUtensorMap map;
  const CUresult result = encode(&map, dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                 2, const_cast<void*>(data), size, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Internal("the driver refuses the tensor map of a matrix of " + std::to_string(rows) + " rows and " +
                    std::to_string(cols) + " columns, stride " + std::to_string(stride) + " (error " + std::to_string(result) +
                    ")");
  }
  return map;
}

// Of a tile: as few as hold an equal share of the rows.
int XRowsOf(int64_t rows) {
  const int64_t blocks = CeilDiv<int64_t>(rows, gated::kMaxXRows);
  return static_cast<int>(RoundUp<int64_t>(CeilDiv(rows, blocks), 64));
}

int64_t WeightTilesOf(const CudaWeight& weight) { return CeilDiv<int64_t>(weight.rows(), gated::kTileRows * gated::kCtas); }

}  // namespace

Result<GatedProduct> GatedProduct::Create(Device* device) {
  GatedProduct product;
  if (device->compute_capability() != 90) return product;
  const coppice::cuda::DeviceGuard guard(device->ordinal());
  COPPICE_ASSIGN_OR_RETURN(const int32_t of_bf16, gated::PrepareBf16());
  COPPICE_ASSIGN_OR_RETURN(const int32_t of_f16, gated::PrepareF16());
  const int32_t clusters = std::min(of_bf16, of_f16);
  if (clusters == 0) return product;
  COPPICE_ASSIGN_OR_RETURN(product.partials_, device->Allocate(clusters * gated::kCtas * gated::kPartialBytes));
  const size_t flag_bytes = clusters * gated::kCtas * gated::kWarpgroups * sizeof(uint32_t);
  COPPICE_ASSIGN_OR_RETURN(product.flags_, device->Allocate(flag_bytes));
  COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(cudaMemset(product.flags_.data(), 0, flag_bytes), "cudaMemset"));
  product.num_clusters_ = clusters;
  return product;
}

bool GatedProduct::Takes(const ConstDeviceTensor& x, const CudaWeight& weight, const DeviceTensor& y, Activation activation) const {
  const auto is_aligned = [](const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; };
  return IsAvailable() && activation != Activation::kGelu && weight.is_gated() && weight.bias() == nullptr &&
         weight.dtype() != DType::kF32 && y.dtype == weight.dtype() && is_aligned(x.data, 16) && x.stride % 8 == 0 &&
         is_aligned(y.data, 4) && y.stride % 2 == 0 && weight.out_features() % 2 == 0 && x.rows > 0 &&
         CeilDiv<int64_t>(x.rows, 64) * WeightTilesOf(weight) * CeilDiv<int64_t>(x.cols, gated::kChunkCols) <= INT32_MAX;
}

bool GatedProduct::IsFaster(int64_t rows, const CudaWeight& weight) const {
  return rows <= gated::kMaxXRows && WeightTilesOf(weight) >= num_clusters_;
}

Status GatedProduct::Run(const ConstDeviceTensor& x, const CudaWeight& weight, const DeviceTensor& y, Activation activation,
                         cudaStream_t stream) const {
  const int x_rows = XRowsOf(x.rows);
  gated::Params params{};
  COPPICE_ASSIGN_OR_RETURN(
      params.weight, MapOf(weight.dtype(), weight.data(), weight.rows(), weight.in_features(), weight.stride(), gated::kTileRows));
  COPPICE_ASSIGN_OR_RETURN(params.x, MapOf(x.dtype, x.data, x.rows, x.cols, x.stride, x_rows / gated::kCtas));
  params.num_clusters = num_clusters_;
  params.x_blocks = static_cast<int32_t>(CeilDiv<int64_t>(x.rows, x_rows));
  params.num_tiles = static_cast<int32_t>(WeightTilesOf(weight)) * params.x_blocks;
  params.chunks = static_cast<int32_t>(CeilDiv<int64_t>(x.cols, gated::kChunkCols));
  params.num_rows = static_cast<int32_t>(x.rows);
  params.out_features = static_cast<int32_t>(weight.out_features());
  params.y = y.data;
  params.y_stride = y.stride;
  params.is_gelu = activation == Activation::kGeluTanh;
  params.partials = partials_.As<float4>();
  params.flags = flags_.As<uint32_t>();
  return weight.dtype() == DType::kBF16 ? gated::LaunchBf16(params, x_rows, stream) : gated::LaunchF16(params, x_rows, stream);
}

}  // namespace coppice::ops::cuda
