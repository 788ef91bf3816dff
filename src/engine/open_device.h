// The device that EngineOptions::device names. Layer: engine.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "coppice/core/executor.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"
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

// `executor`, of the CPU, outlives the device. UNAVAILABLE, with the reason, where the device is not there. INVALID_ARGUMENT for a
// dtype that it does not compute in; none: any.
Result<std::unique_ptr<Device>> OpenDevice(const DeviceName& name, std::optional<DType> dtype, Executor* executor);

}  // namespace coppice
