// The machine model of a GPU that none was given for: a shipped one where the card is one of those measured, else the H100's,
// scaled. Host code of every build. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <string>

#include "attention/cuda/device_rates.h"
#include "attention/machine_model.h"

namespace coppice::attention::cuda {

// A device, by its driver.
struct DeviceDescription {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int32_t num_sms = 0;
  int64_t l2_bytes = 0;
};

// The shipped model of such a card; null where none was measured on one. A name that only contains another, such as GH200, is
// another card.
const char* MeasuredMachine(const std::string& device_name);

// The H100's rates scaled by what the driver says of memory bus, SMs and clock, at the share of Hopper's matrix rate per SM and
// clock that the device's generation has, never more: close enough to decide what to share until PlannerOptions::machine_model_path
// gives measured ones. Says so in MachineModel::scaled_from.
Result<MachineModel> ScaledMachine(const DeviceDescription& device, const DeviceRates& rates);

}  // namespace coppice::attention::cuda
