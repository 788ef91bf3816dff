// The device that EngineOptions::device names, and what its kind computes. Layer: engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "coppice/core/executor.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "coppice/engine/engine.h"
#include "core/device.h"

namespace coppice {

// "auto" is kind kCuda with `optional` set.
struct DeviceName {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
  bool optional = false;  // the CPU does where there is no such device
};

// "auto", "cpu", "cuda" or "cuda:ORDINAL"; INVALID_ARGUMENT for anything else.
Result<DeviceName> ParseDeviceName(std::string_view text);
// "cpu" or "cuda:ORDINAL".
std::string NameOf(const Device& device);

// The dtype of product inputs, and of weights that are converted, which the options ask for; none: any.
std::optional<DType> WantedDType(const EngineOptions& options);

// Whether a device of that kind holds weights in the form that the options name and computes in the dtype that they want.
// INVALID_ARGUMENT begins with the name of the option that it does not follow, and says what it does.
Status CheckComputesOn(DeviceKind kind, const EngineOptions& options);
// The same of the kind that options.device names; of "auto" either may do. INVALID_ARGUMENT for another name, too.
Status CheckDevice(const EngineOptions& options);

// The device that options.device names; of "auto" the first CUDA device, where it is there and computes as the options say, else
// the CPU. `executor`, of the CPU, outlives the device. UNAVAILABLE, with the reason, where the device is not there. Other errors
// as CheckComputesOn.
Result<std::unique_ptr<Device>> OpenDevice(const EngineOptions& options, Executor* executor);

}  // namespace coppice
