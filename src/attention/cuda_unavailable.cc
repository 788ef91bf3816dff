// The CUDA factories of a build without the CUDA backend. Layer: attention.
#include "coppice/attention/attention.h"

namespace coppice::attention {
Result<std::unique_ptr<Context>> Context::CreateCuda(int, CudaKernels) {
  return Unavailable("the CUDA backend is not built; configure with -DCOPPICE_CUDA=ON, or use the CPU");
}

}  // namespace coppice::attention
