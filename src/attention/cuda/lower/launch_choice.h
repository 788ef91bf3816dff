// Which of the backend's kernels runs a plan as it is lowered, at the lengths of a step. Host code of every build. Layer:
// attention/cuda.
#pragma once

#include <cstdint>

#include "attention/backend_traits.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/lowered_plan.h"
#include "attention/cuda/lower/short_steps.h"

namespace coppice::attention::cuda {

enum class KernelId : uint8_t {
  kPersistent,            // Hopper's
  kPersistentOverlapped,  // the same with overlapped tiles, for plans that have some
  kShortDecode,           // for steps of few queries and tokens that share nothing
  kMmaSync,
};
inline constexpr size_t kNumKernels = 4;

struct LaunchChoice {
  KernelId kernel = KernelId::kPersistent;
  ShortLaunch short_launch;  // kShortDecode

  // The same for launches that one captured graph serves.
  uint16_t number() const { return static_cast<uint16_t>(static_cast<int>(kernel) << 8 | short_launch.cluster); }
};

// The kernels that there are for a plan.
struct PlanKernels {
  KernelPath path;
  bool has_overlap = false;  // KernelId::kPersistentOverlapped; without it kPersistent runs those plans too
  BackendTraits traits;      // which say whether there is kShortDecode
};

// forest: of the step.
LaunchChoice ChooseLaunch(const PlanKernels& kernels, const LoweredView& lowered, const PrefixForestView& forest);

}  // namespace coppice::attention::cuda
