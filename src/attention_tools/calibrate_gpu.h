// Measures a GPU for the cost model: nine rates, each by whole steps of the kernels that will run. A shipped model says what the
// same nine were on the card that it was fitted to; the model of the card at hand is that one, each of its numbers scaled by the
// rate that it follows. `coppice bench calibrate --device cuda`. Layer: attention.
#pragma once

#include "attention/machine_model.h"
#include "attention_tools/bench_device.h"

namespace coppice::attention {

// Takes some seconds and 2 GB of the device's memory. RESOURCE_EXHAUSTED without them. bf16, head_dim 128.
Result<GpuProbe> ProbeGpu(BenchDevice& device);

// `reference` scaled to a card that gave `probe`. INVALID_ARGUMENT if the reference has no probe of its own.
Result<MachineModel> ScaleToProbe(const MachineModel& reference, const GpuProbe& probe);

// Both: the shipped model of the device's kind, or where that is a derived one the H200's, scaled.
Result<MachineModel> CalibrateGpu(BenchDevice& device);

}  // namespace coppice::attention
