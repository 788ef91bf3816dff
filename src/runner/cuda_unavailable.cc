// The error of a build without CUDA. Layer: runner.
#include "runner/device_sampler.h"

namespace coppice {

Result<std::unique_ptr<DeviceSampler>> DeviceSampler::Create(Device*, const Limits&, std::shared_ptr<DraftDistributions>) {
  return Unavailable("sampling on a GPU is not built: configure with -DCOPPICE_CUDA=ON");
}

}  // namespace coppice
