// Ops::Create: the operations of a device's kind; and what operations are made of others.
// Layer: ops.
#include "core/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/create_cuda_ops.h"

namespace coppice::ops {

Result<std::unique_ptr<Ops>> Ops::Create(Device* device, const Options& options) {
  if (device == nullptr) return InvalidArgument("the operations have no device; pass one");
  if (device->kind() == DeviceKind::kCpu) return CreateCpuOps(device, options);
  return CreateCudaOps(device, options);
}

Status Ops::NormLinear(ConstDeviceTensor x, const NormArgs& norm, DeviceTensor normed, const Weight& weight, DeviceTensor y,
                       const Epilogue& epilogue, Stream stream) {
  COPPICE_RETURN_IF_ERROR(Norm(x, norm, normed, {}, stream));
  return Linear(normed, weight, y, epilogue, stream);
}

Result<std::unique_ptr<Weight>> Ops::PackQkv(DType dtype, int64_t in_features, std::span<const LinearPart> parts, const QkvHeads&) {
  return Pack(dtype, in_features, parts);
}

Status Ops::QkvRope(ConstDeviceTensor x, const Weight& weight, const RopeAppendArgs& args, Stream stream) {
  COPPICE_RETURN_IF_ERROR(Linear(x, weight, args.qkv, {}, stream));
  return RopeAppend(args, stream);
}

Status Ops::NormQkvRope(ConstDeviceTensor x, const NormArgs& norm, DeviceTensor normed, const Weight& weight,
                        const RopeAppendArgs& args, Stream stream) {
  COPPICE_RETURN_IF_ERROR(Norm(x, norm, normed, {}, stream));
  return QkvRope(normed, weight, args, stream);
}

}  // namespace coppice::ops
