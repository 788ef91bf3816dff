// A kernel that traps: after it the process has no device any more, as after a hardware fault. Layer: core/cuda, tests only.
#pragma once

namespace coppice::cuda {

// On device `ordinal`, in its default stream.
void LoseDevice(int ordinal);

}  // namespace coppice::cuda
