// Rotary angles, and the split, norm, rotation and storing of one layer's projections. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace coppice::ops::cuda {

Status LaunchRopeAngles(DeviceSpan<const int32_t> positions, DeviceSpan<const float> inverse_frequencies, float scale,
                        const DeviceTensor& cos, const DeviceTensor& sin, bool overlaps, cudaStream_t stream);
// `in_groups`: rows of qkv are those of a weight that groups_pairs. UNIMPLEMENTED where q and the KV pool differ in dtype.
Status LaunchRopeAppend(const RopeAppendArgs& args, bool in_groups, bool overlaps, cudaStream_t stream);

}  // namespace coppice::ops::cuda
