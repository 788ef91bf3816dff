// The devices that EngineOptions::device names, and what their kind computes. Layer: engine.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
// Of each rank: a name, or several separated by commas. INVALID_ARGUMENT for anything else, and for several that are neither all
// CPUs nor different GPUs.
Result<std::vector<DeviceName>> ParseDeviceNames(std::string_view text);
// "cpu" or "cuda:ORDINAL".
std::string NameOf(const Device& device);
std::string NamesOf(std::span<const std::unique_ptr<Device>> devices);
// Whether names of NamesOf are of CPUs.
bool IsOnCpus(std::string_view names);

// The dtype of product inputs, and of weights that are converted, which the options ask for; none: any.
std::optional<DType> WantedDType(const EngineOptions& options);

// Whether a device of that kind holds weights in the form that the options name and computes in the dtype that they want.
// INVALID_ARGUMENT begins with the name of the option that it does not follow, and says what it does.
Status CheckComputesOn(DeviceKind kind, const EngineOptions& options);
// The same of the kind that options.device names; of "auto" either may do. INVALID_ARGUMENT for other names, too.
Status CheckDevice(const EngineOptions& options);

// The device that options.device names, of several the first; of "auto" the first CUDA device, where it is there and computes as
// the options say, else the CPU. `executor`, of the CPU, outlives the device. UNAVAILABLE, with the reason, where the device is not
// there. Other errors as CheckComputesOn.
Result<std::unique_ptr<Device>> OpenDevice(const EngineOptions& options, Executor* executor);
// The devices that options.device names, one a rank, each with its executor. Errors as OpenDevice. REQUIRES: as many executors as
// ParseDeviceNames gives names.
Result<std::vector<std::unique_ptr<Device>>> OpenDevices(const EngineOptions& options, std::span<Executor* const> executors);

}  // namespace coppice
