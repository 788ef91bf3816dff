#include "ops/cuda/few_rows.h"

#include <algorithm>

#include "core/check.h"
#include "core/math.h"
#include "ops/cuda/few_rows_params.h"

namespace coppice::ops::cuda {
namespace {

int32_t UnitsOf(const WeightView& weight) { return static_cast<int32_t>(CeilDiv<int64_t>(weight.n, kFewRowsUnit)); }

}  // namespace

Result<FewRowsProduct> FewRowsProduct::Create(Device* device) {
  const coppice::cuda::DeviceGuard guard(device->ordinal());
  FewRowsProduct product;
  int num_sms = 0, shared_bytes = 0;
  COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(
      cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device->ordinal()), "cudaDeviceGetAttribute"));
  COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device->ordinal()), "cudaDeviceGetAttribute"));
  COPPICE_ASSIGN_OR_RETURN(product.max_rows_, PrepareFewRowsBf16(shared_bytes));
  COPPICE_RETURN_IF_ERROR(PrepareFewRowsF16(shared_bytes).status());
  product.num_sms_ = num_sms;
  product.overlaps_ = device->compute_capability() >= 90;
  return product;
}

bool FewRowsProduct::Takes(const ConstDeviceTensor& x, const WeightView& weight) const {
  return x.rows <= max_rows_ && weight.dtype != DType::kF32 && weight.k % 8 == 0 && x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && weight.n <= INT32_MAX && weight.stride <= INT32_MAX;
}

bool FewRowsProduct::TakesNormed(const ConstDeviceTensor& x, const NormArgs& norm, const WeightView& weight) const {
  return max_rows_ > 0 && x.rows <= 8 && x.rows * weight.stride <= kMaxNormedElements && weight.dtype != DType::kF32 &&
         weight.k % 4 == 0 && norm.kind == NormKind::kRms && norm.bias.empty() && x.stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && reinterpret_cast<uintptr_t>(norm.weight.data) % 16 == 0 &&
         weight.n <= INT32_MAX;
}

bool FewRowsProduct::TakesRope(const WeightView& weight, const RopeAppendArgs& args) {
  const bool pairs_meet = args.cos.cols == 0 || args.pairs == RopePairs::kNeighbours || weight.groups_pairs;
  return pairs_meet && args.head_dim % kFewRowsUnit == 0 && !args.q_norm && !args.k_norm && args.q.dtype == weight.dtype &&
         args.kv.dtype == weight.dtype && weight.n == int64_t{args.num_qo_heads + 2 * args.num_kv_heads} * args.head_dim;
}

FewRowsParams FewRowsProduct::ParamsOf(const ConstDeviceTensor& x, const WeightView& weight, const NormArgs* norm) {
  FewRowsParams params = {.weight = weight.data,
                          .stride = weight.stride,
                          .units = UnitsOf(weight),
                          .chunks = static_cast<int32_t>(weight.stride / kWeightChunkCols),
                          .x = x.data,
                          .x_stride = x.stride,
                          .num_rows = static_cast<int32_t>(x.rows),
                          .in_features = static_cast<int32_t>(weight.k),
                          .out_features = static_cast<int32_t>(weight.out_features),
                          .y = nullptr,
                          .y_stride = 0,
                          .y_is_f32 = false,
                          .bias = weight.bias,
                          .epilogue = {},
                          .norm = {},
                          .rotation = {}};
  if (norm != nullptr) {
    params.norm = {.x = static_cast<const float*>(x.data), .x_stride = x.stride, .weight = norm->weight.data, .eps = norm->eps};
  }
  return params;
}

Status FewRowsProduct::Launch(const FewRowsParams& params, DType dtype, bool after_own, cudaStream_t stream) const {
  const FewRowsLaunch launch = {.num_ctas = num_sms_, .overlaps = overlaps_, .after_own = after_own, .stream = stream};
  return dtype == DType::kBF16 ? LaunchFewRowsBf16(params, launch) : LaunchFewRowsF16(params, launch);
}

Status FewRowsProduct::Run(const ConstDeviceTensor& x, const WeightView& weight, const DeviceTensor& y, const Epilogue& epilogue,
                           const NormArgs* norm, bool after_own, cudaStream_t stream) const {
  FewRowsParams params = ParamsOf(x, weight, norm);
  params.y = y.data;
  params.y_stride = y.stride;
  params.y_is_f32 = y.dtype == DType::kF32;
  params.epilogue = epilogue;
  return Launch(params, weight.dtype, after_own, stream);
}

Status FewRowsProduct::RunQkvRope(const ConstDeviceTensor& x, const WeightView& weight, const RopeAppendArgs& args,
                                  const NormArgs* norm, bool after_own, cudaStream_t stream) const {
  FewRowsParams params = ParamsOf(x, weight, norm);
  params.rotation = RotationParams::Of(args, weight.groups_pairs);
  return Launch(params, weight.dtype, after_own, stream);
}

}  // namespace coppice::ops::cuda
