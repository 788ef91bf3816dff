// The choice of a launch. Layer: attention/cuda.
#include "attention/cuda/lower/launch_choice.h"

namespace coppice::attention::cuda {

LaunchChoice ChooseLaunch(const PlanKernels& kernels, const LoweredView& lowered, const PrefixForestView& forest) {
  if (kernels.path == KernelPath::kMmaSync) return {.kernel = KernelId::kMmaSync};
  if (const ShortLaunch launch = ShortLaunchOf(kernels.traits, lowered.plan, forest)) {
    return {.kernel = KernelId::kShortDecode, .short_launch = launch};
  }
  const bool overlaps = kernels.has_overlap && lowered.translator.overlapped();
  return {.kernel = overlaps ? KernelId::kPersistentOverlapped : KernelId::kPersistent};
}

}  // namespace coppice::attention::cuda
