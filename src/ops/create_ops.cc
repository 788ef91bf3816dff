// Ops::Create: the operations of a device's kind.
// Layer: ops.
#include "ops/cpu/cpu_ops.h"
#include "ops/create_cuda_ops.h"

namespace coppice::ops {

Result<std::unique_ptr<Ops>> Ops::Create(Device* device, const Options& options) {
  if (device == nullptr) return InvalidArgument("the operations have no device; pass one");
  if (device->kind() == DeviceKind::kCpu) return CreateCpuOps(device, options);
  return CreateCudaOps(device, options);
}

}  // namespace coppice::ops
