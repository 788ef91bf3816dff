#include "engine/open_device.h"

#include <charconv>
#include <string>

#include "core/check.h"

namespace coppice {

Result<DeviceName> ParseDeviceName(std::string_view text) {
  if (text == "auto") return DeviceName{.kind = DeviceKind::kCuda, .optional = true};
  if (text == "cpu") return DeviceName{};
  constexpr std::string_view kCuda = "cuda";
  if (text.starts_with(kCuda)) {
    DeviceName name{.kind = DeviceKind::kCuda};
    std::string_view ordinal = text.substr(kCuda.size());
    if (ordinal.empty()) return name;
    if (ordinal.front() == ':') {
      ordinal.remove_prefix(1);
      const auto [end, error] = std::from_chars(ordinal.data(), ordinal.data() + ordinal.size(), name.ordinal);
      if (error == std::errc() && end == ordinal.data() + ordinal.size() && name.ordinal >= 0) return name;
    }
  }
  return InvalidArgument("device is \"" + std::string(text) + "\", expected auto, cpu, cuda or cuda:0");
}

namespace {

Result<std::unique_ptr<Device>> OpenCpu(std::optional<DType> dtype, Executor* executor) {
  if (dtype != DType::kF16) return Device::CreateCpu(executor);
  return InvalidArgument("a CPU computes in bf16 or f32; f16 was asked for: use a CUDA device, or leave the dtype out");
}

}  // namespace

Result<std::unique_ptr<Device>> OpenDevice(const DeviceName& name, std::optional<DType> dtype, Executor* executor) {
  if (name.kind == DeviceKind::kCpu || (name.optional && dtype == DType::kF32)) return OpenCpu(dtype, executor);
  if (dtype == DType::kF32) {
    return InvalidArgument("a CUDA device computes in bf16 or f16; f32 was asked for: use the CPU, or leave the dtype out");
  }
  Result<std::unique_ptr<Device>> device = Device::CreateCuda(name.ordinal);
  if (!device.ok() && name.optional && device.status().code() == StatusCode::kUnavailable) return OpenCpu(dtype, executor);
  return device;
}

}  // namespace coppice
