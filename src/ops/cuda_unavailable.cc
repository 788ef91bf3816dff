// The CUDA operations of a build without CUDA. Layer: ops.
#include "ops/create_cuda_ops.h"

namespace coppice::ops {

Result<std::unique_ptr<Ops>> CreateCudaOps(Device* device, const Ops::Options&) {
  return Unavailable("the operations are not built for " + device->name() +
                     "; configure with -DCOPPICE_CUDA=ON, or use a CPU device");
}

}  // namespace coppice::ops
