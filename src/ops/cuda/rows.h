// Small passes over rows: embedding, and what is left to do to a library's product. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/cuda_weight.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

Status LaunchEmbed(DeviceSpan<const int32_t> token_ids, const CudaWeight& table, const EmbedArgs& args, const DeviceTensor& y,
                   bool overlaps, cudaStream_t stream);

Status LaunchFill(float* x, int64_t count, float value, bool overlaps, cudaStream_t stream);

Status LaunchGather(const ConstDeviceTensor& x, DeviceSpan<const int32_t> rows, const DeviceTensor& y, bool overlaps,
                    cudaStream_t stream);

// y = act(y + bias), or y + bias without an activation. bias [y.cols] or null.
struct FinishArgs {
  const float* bias = nullptr;
  const Activation* activation = nullptr;  // null: none
};
Status LaunchFinish(const FinishArgs& args, const DeviceTensor& y, bool overlaps, cudaStream_t stream);

// y = act(g + b_g) * (u + b_u) of a product whose columns are packed as CudaWeight packs PartOrder::kGateUp. bias as packed, or
// null.
Status LaunchGate(const ConstDeviceTensor& gate_up, const float* bias, Activation activation, const DeviceTensor& y, bool overlaps,
                  cudaStream_t stream);

}  // namespace coppice::ops::cuda
