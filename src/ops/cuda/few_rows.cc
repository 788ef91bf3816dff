#include "ops/cuda/few_rows.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/math.h"
#include "ops/cuda/few_rows_params.h"

namespace coppice::ops::cuda {
namespace {

// Fewer chunks than this a CTA, and what it costs to add up partial sums shows.
constexpr int64_t kMinChunksPerCta = 16;

int64_t TilesOf(const FewRowsWeight& weight) { return CeilDiv<int64_t>(weight.n, kWeightTileRows); }

}  // namespace

Result<FewRowsProduct> FewRowsProduct::Create(Device* device) {
  FewRowsProduct product;
  product.device_ = device;
  int num_sms = 0;
  COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(
      cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device->ordinal()), "cudaDeviceGetAttribute"));
  product.num_ctas_ = num_sms * kFewRowsCtasPerSm;
  product.overlaps_ = device->compute_capability() >= 90;
  COPPICE_ASSIGN_OR_RETURN(product.partials_,
                           device->Allocate(sizeof(float) * product.num_ctas_ * 2 * kMaxFewRows * kWeightTileRows));
  return Result<FewRowsProduct>(std::move(product));
}

bool FewRowsProduct::Takes(const ConstDeviceTensor& x, const FewRowsWeight& weight) {
  return x.rows <= kMaxFewRows && weight.dtype != DType::kF32 && weight.k % 8 == 0 && x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && TilesOf(weight) * weight.stride / kWeightChunkCols <= INT32_MAX;
}

Status FewRowsProduct::Reserve(const FewRowsWeight& weight) {
  const size_t bytes = static_cast<size_t>(TilesOf(weight)) * sizeof(int32_t);
  if (bytes <= tickets_.size()) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(tickets_, device_->Allocate(bytes));
  return OkStatus();
}

Status FewRowsProduct::Run(const ConstDeviceTensor& x, const FewRowsWeight& weight, const DeviceTensor& y, const Epilogue& epilogue,
                           cudaStream_t stream) const {
  const int64_t chunks = weight.stride / kWeightChunkCols;
  const FewRowsParams params = {.weight = weight.data,
                                .stride = weight.stride,
                                .tiles = static_cast<int32_t>(TilesOf(weight)),
                                .chunks = static_cast<int32_t>(chunks),
                                .x = x.data,
                                .x_stride = x.stride,
                                .num_rows = static_cast<int32_t>(x.rows),
                                .in_features = static_cast<int32_t>(weight.k),
                                .out_features = static_cast<int32_t>(weight.out_features),
                                .y = y.data,
                                .y_stride = y.stride,
                                .y_is_f32 = y.dtype == DType::kF32,
                                .bias = weight.bias,
                                .epilogue = epilogue,
                                .partials = partials_.As<float>(),
                                .tickets = tickets_.As<int32_t>()};
  const int64_t useful = std::max<int64_t>(1, TilesOf(weight) * chunks / kMinChunksPerCta);
  const int ctas = static_cast<int>(std::min<int64_t>(num_ctas_, useful));
  return weight.dtype == DType::kBF16 ? LaunchFewRowsBf16(params, ctas, overlaps_, stream)
                                      : LaunchFewRowsF16(params, ctas, overlaps_, stream);
}

}  // namespace coppice::ops::cuda
