// The CUDA device of a build without CUDA. Layer: core.
#include "core/device.h"

namespace coppice {

Result<std::unique_ptr<Device>> Device::CreateCuda(int) {
  return Unavailable("CUDA is not built; configure with -DCOPPICE_CUDA=ON, or use the CPU");
}

}  // namespace coppice
