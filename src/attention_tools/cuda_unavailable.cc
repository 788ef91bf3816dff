// The CUDA bench device of a build without the CUDA backend. Layer: attention_tools.
#include "attention_tools/bench_device.h"

namespace coppice::attention {

Result<std::unique_ptr<BenchDevice>> MakeCudaBenchDevice(int) {
  return Unavailable("the CUDA backend is not built; configure with -DCOPPICE_CUDA=ON, or use the CPU");
}

}  // namespace coppice::attention
