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

// A matrix of 16-bit elements, copied in boxes, a row of a box as wide as the swizzle. Zeros are read beyond its ends; nothing is
// written there, up to whole 16 bytes of a row.
struct MatrixBoxes {
  DType dtype = DType::kBF16;
  const void* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;
  int64_t box_rows = 0, box_cols = gated::kChunkCols;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};
Result<CUtensorMap> MapOf(const MatrixBoxes& m) {
  COPPICE_ASSIGN_OR_RETURN(const coppice::cuda::EncodeTensorMap encode, coppice::cuda::FindTensorMapEncoder());
  const cuuint64_t size[] = {static_cast<cuuint64_t>(m.cols), static_cast<cuuint64_t>(m.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(m.stride) * 2};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(m.box_cols), static_cast<cuuint32_t>(m.box_rows)}, element_strides[] = {1, 1};
  CUtensorMap map;
  const CUresult result = encode(&map, m.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                 2, const_cast<void*>(m.data), size, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 m.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Internal("the driver refuses the tensor map of a matrix of " + std::to_string(m.rows) + " rows and " +
                    std::to_string(m.cols) + " columns, stride " + std::to_string(m.stride) + " (error " + std::to_string(result) +
                    ")");
  }
  return map;
}

// Of a tile: as few as hold an equal share of the rows.
int XRowsOf(int64_t rows) {
  const int64_t blocks = CeilDiv<int64_t>(rows, gated::kMaxXRows);
  return static_cast<int>(RoundUp<int64_t>(CeilDiv(rows, blocks), 64));
}

int64_t WeightTilesOf(const WeightView& weight) { return CeilDiv<int64_t>(weight.n, gated::kTileRows * gated::kCtas); }

// 2,048 rows of x, 16 MB of 4,096 inputs, stay in the L2 while all weights pass: 4 and 16 blocks were 1.4 and 2 % slower at 8,192
// rows of Llama-3-8B.
constexpr int32_t kGroupBlocks = 8;

// Waves in which each cluster has a tile of its own. Where clusters would idle longer at their end, the tiles of the last wave and
// the one before are shared out. That has a price, in steps: sums pass through memory, and clusters that are at different inputs
// of the same rows do not find them in the L2, if others read them too.
int64_t WholeWaves(int64_t tiles, int64_t chunks, int64_t clusters, int64_t x_blocks) {
  const int64_t price = x_blocks == 1 ? 16 : 32;
  const int64_t waves = CeilDiv(tiles, clusters), idle_steps = (waves * clusters - tiles) * chunks / clusters;
  return idle_steps <= price ? waves : std::max<int64_t>(waves - 2, 0);
}

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

bool GatedProduct::Takes(const ConstDeviceTensor& x, const WeightView& weight, const DeviceTensor& y, Activation activation) const {
  const auto is_aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return IsAvailable() && activation != Activation::kGelu && weight.is_gated && weight.bias == nullptr &&
         weight.dtype != DType::kF32 && y.dtype == weight.dtype && is_aligned(x.data) && x.stride % 8 == 0 && is_aligned(y.data) &&
         y.stride % 8 == 0 && weight.out_features % 8 == 0 && x.rows > 0 &&
         CeilDiv<int64_t>(x.rows, 64) * WeightTilesOf(weight) * CeilDiv<int64_t>(x.cols, gated::kChunkCols) <= INT32_MAX;
}

bool GatedProduct::IsFaster(int64_t rows, const WeightView& weight) const {
  const int64_t x_rows = XRowsOf(rows), x_blocks = CeilDiv(rows, x_rows), tiles = x_blocks * WeightTilesOf(weight);
  if (x_blocks == 1) return tiles >= num_clusters_;
  // Below five tiles a cluster, and with rows computed in vain, the library's smaller tiles win more than the gate's pass costs.
  return tiles >= 5 * num_clusters_ && 25 * (x_blocks * x_rows - rows) <= rows;
}

Status GatedProduct::Run(const ConstDeviceTensor& x, const WeightView& weight, const DeviceTensor& y, Activation activation,
                         cudaStream_t stream) const {
  const int x_rows = XRowsOf(x.rows);
  gated::Params params{};
  COPPICE_ASSIGN_OR_RETURN(params.weight, MapOf({.dtype = weight.dtype,
                                                 .data = weight.data,
                                                 .rows = weight.n,
                                                 .cols = weight.k,
                                                 .stride = weight.stride,
                                                 .box_rows = gated::kTileRows}));
  COPPICE_ASSIGN_OR_RETURN(params.x, MapOf({.dtype = x.dtype,
                                            .data = x.data,
                                            .rows = x.rows,
                                            .cols = x.cols,
                                            .stride = x.stride,
                                            .box_rows = x_rows / gated::kCtas}));
  COPPICE_ASSIGN_OR_RETURN(params.y, MapOf({.dtype = y.dtype,
                                            .data = y.data,
                                            .rows = x.rows,
                                            .cols = weight.out_features,
                                            .stride = y.stride,
                                            .box_rows = x_rows,
                                            .box_cols = gated::kGatedCols,
                                            .swizzle = CU_TENSOR_MAP_SWIZZLE_64B}));
  params.num_clusters = num_clusters_;
  params.x_blocks = static_cast<int32_t>(CeilDiv<int64_t>(x.rows, x_rows));
  params.weight_tiles = static_cast<int32_t>(WeightTilesOf(weight));
  params.group_blocks = kGroupBlocks;
  params.num_tiles = params.weight_tiles * params.x_blocks;
  params.chunks = static_cast<int32_t>(CeilDiv<int64_t>(x.cols, gated::kChunkCols));
  params.whole_waves = static_cast<int32_t>(WholeWaves(params.num_tiles, params.chunks, num_clusters_, params.x_blocks));
  params.is_gelu = activation == Activation::kGeluTanh;
  params.partials = partials_.As<float4>();
  params.flags = flags_.As<uint32_t>();
  return weight.dtype == DType::kBF16 ? gated::LaunchBf16(params, x_rows, stream) : gated::LaunchF16(params, x_rows, stream);
}

}  // namespace coppice::ops::cuda
