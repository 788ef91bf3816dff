// Ops::Create: the operations of a device's kind.
// Layer: ops.
#include <string>

#include "ops/cpu/cpu_ops.h"

namespace coppice::ops {

Result<std::unique_ptr<Ops>> Ops::Create(Device* device, const Options& options) {
  if (device == nullptr) return InvalidArgument("the operations have no device; pass one");
  if (device->kind() == DeviceKind::kCpu) return CreateCpuOps(device, options);
  return Unavailable("operations other than attention are not built for " + device->name() + "; use a CPU device");
}

}  // namespace coppice::ops
