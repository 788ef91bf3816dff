// The CUDA factories of a build without the CUDA backend. Layer: attention.
#include "attention/bench_device.h"
#include "coppice/attention.h"

namespace coppice::attention {
namespace {

Status NotBuilt() { return Unavailable("the CUDA backend is not built; configure with -DCOPPICE_CUDA=ON, or use the CPU"); }

}  // namespace

Result<std::unique_ptr<Context>> Context::CreateCuda(int, CudaKernels) { return NotBuilt(); }

Result<std::unique_ptr<BenchDevice>> MakeCudaBenchDevice(int) { return NotBuilt(); }

}  // namespace coppice::attention
