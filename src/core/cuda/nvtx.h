// Ranges that NVIDIA's profilers show beside the device's work; without a profiler they cost a call. Layer: core/cuda.
#pragma once

namespace coppice::cuda {

// `name`: a range of this thread, inside those that it has pushed.
void PushRange(const char* name);
void PopRange();

}  // namespace coppice::cuda
