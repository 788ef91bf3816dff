// What the driver says of a device's memory bus and clocks. Layer: attention/cuda.
#pragma once

#include "coppice/core/status.h"

namespace coppice::attention::cuda {

// At the highest clocks. bus_bytes_per_s: 0 where the driver does not say.
struct DeviceRates {
  double bus_bytes_per_s = 0, clock_hz = 0;
};
Result<DeviceRates> RatesOf(int device);

}  // namespace coppice::attention::cuda
