// The CUDA operations of a build without CUDA. Layer: ops.
#include "ops/create_cuda_ops.h"
#include "ops/peer_group.h"

namespace coppice::ops {

Result<std::unique_ptr<Ops>> CreateCudaOps(Device* device, const Ops::Options&) {
  return Unavailable("the operations are not built for " + device->name() +
                     "; configure with -DCOPPICE_CUDA=ON, or use a CPU device");
}

Result<std::unique_ptr<CommunicatorGroup>> MakePeerGroup(std::span<const int>, int64_t) {
  return Unavailable("CUDA is not built; configure with -DCOPPICE_CUDA=ON, or divide the model among CPU threads (cpu,cpu)");
}

Result<std::unique_ptr<CommunicatorGroup>> MakeNcclGroup(std::span<const int> ordinals, int64_t max_bytes) {
  return MakePeerGroup(ordinals, max_bytes);
}

}  // namespace coppice::ops
