// A device's memory bus and clocks by its driver, and the rate of its generation's tensor cores. Layer: attention/cuda.
#pragma once

#include "coppice/core/status.h"

namespace coppice::attention::cuda {

// At the highest clocks. bus_bytes_per_s: 0 where the driver does not say. flops_per_clock: of an SM, bf16 products with sums in
// f32.
struct DeviceRates {
  double bus_bytes_per_s = 0, clock_hz = 0, flops_per_clock = 0;
};
inline constexpr double kHopperFlopsPerClock = 4096;
Result<DeviceRates> RatesOf(int device);

}  // namespace coppice::attention::cuda
