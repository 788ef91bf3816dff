#include "engine/open_device.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/cpu/kernel_probe.h"
#include "ops/peer_group.h"

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

Result<std::vector<DeviceName>> ParseDeviceNames(std::string_view text) {
  constexpr size_t kMostRanks = 64;
  std::vector<DeviceName> names;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    COPPICE_ASSIGN_OR_RETURN(const DeviceName name, ParseDeviceName(rest.substr(0, comma)));
    names.push_back(name);
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (names.size() == 1) return names;
  const auto is_cpu = [](const DeviceName& name) { return name.kind == DeviceKind::kCpu; };
  const auto is_gpu = [](const DeviceName& name) { return name.kind == DeviceKind::kCuda && !name.optional; };
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument("device is \"" + std::string(text) + "\", " + why +
                           ": expected one device, several GPUs (cuda:0,cuda:1) or cpu several times (cpu,cpu)");
  };
  if (std::ranges::all_of(names, is_cpu)) {
    if (names.size() > kMostRanks) return refuse(std::to_string(names.size()) + " ranks, of at most " + std::to_string(kMostRanks));
    return names;
  }
  if (!std::ranges::all_of(names, is_gpu)) return refuse("whose ranks are not of one kind");
  for (size_t i = 0; i < names.size(); ++i) {
    const auto is_same = [&](const DeviceName& other) { return other.ordinal == names[i].ordinal; };
    if (std::ranges::count_if(names, is_same) > 1) return refuse("which names cuda:" + std::to_string(names[i].ordinal) + " twice");
  }
  if (names.size() > ops::kMostPeers) {
    return refuse(std::to_string(names.size()) + " GPUs, of at most " + std::to_string(ops::kMostPeers));
  }
  return names;
}

std::string NamesOf(std::span<const std::unique_ptr<Device>> devices) {
  std::string names;
  for (const auto& device : devices) names += (names.empty() ? "" : ",") + NameOf(*device);
  return names;
}

bool IsOnCpus(std::string_view names) { return names.starts_with("cpu"); }

std::string NameOf(const Device& device) {
  return device.kind() == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.ordinal());
}

std::optional<DType> WantedDType(const EngineOptions& options) {
  return options.weights == WeightForm::kF32 ? DType::kF32 : options.dtype;
}

Status CheckComputesOn(DeviceKind kind, const EngineOptions& options) {
  const bool is_cpu = kind == DeviceKind::kCpu;
  if (is_cpu) COPPICE_RETURN_IF_ERROR(CheckForcedKernels());
  const std::string device = options.device == "auto" && is_cpu ? "auto, the CPU here" : options.device;
  const auto refuse = [](const std::string& what, const std::string& expected) {
    return InvalidArgument(what + ": expected " + expected);
  };
  if (options.weights == WeightForm::kStored) {
    constexpr char kReason[] = ", since only CPUs multiply with a file's blocks";
    if (!is_cpu) return refuse("weights is stored and device " + device, std::string("device cpu or weights fastest") + kReason);
    if (options.dtype == DType::kF16)
      return refuse("weights is stored and dtype f16", std::string("dtype bf16 or f32, or weights fastest") + kReason);
  }
  const std::optional<DType> dtype = WantedDType(options);
  if (is_cpu && dtype == DType::kF16)
    return refuse("dtype is f16 and device " + device, "dtype bf16 or f32, or a CUDA device, since CPUs compute in these two");
  if (!is_cpu && dtype == DType::kF32) {
    constexpr char kReason[] = ", since CUDA devices compute in bf16 and f16";
    return options.weights == WeightForm::kF32
               ? refuse("weights is f32 and device " + device, std::string("device cpu, or weights fastest or bf16") + kReason)
               : refuse("dtype is f32 and device " + device, std::string("device cpu, or dtype bf16 or f16") + kReason);
  }
  return OkStatus();
}

Status CheckDevice(const EngineOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<DeviceName> names, ParseDeviceNames(options.device));
  const DeviceName& name = names.front();
  if (name.optional && CheckComputesOn(DeviceKind::kCuda, options).ok()) return OkStatus();
  return CheckComputesOn(name.optional ? DeviceKind::kCpu : name.kind, options);
}

Result<std::unique_ptr<Device>> OpenDevice(const EngineOptions& options, Executor* executor) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<DeviceName> names, ParseDeviceNames(options.device));
  const DeviceName& name = names.front();
  Status status = CheckComputesOn(name.kind, options);
  if (status.ok() && name.kind == DeviceKind::kCuda) {
    Result<std::unique_ptr<Device>> device = Device::CreateCuda(name.ordinal);
    if (device.ok() || device.status().code() != StatusCode::kUnavailable) return device;
    status = device.status();
  }
  if (name.optional) status = CheckComputesOn(DeviceKind::kCpu, options);
  COPPICE_RETURN_IF_ERROR(status);
  return Device::CreateCpu(executor);
}

Result<std::vector<std::unique_ptr<Device>>> OpenDevices(const EngineOptions& options, std::span<Executor* const> executors) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<DeviceName> names, ParseDeviceNames(options.device));
  std::vector<std::unique_ptr<Device>> devices;
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Device> first, OpenDevice(options, executors.front()));
  devices.push_back(std::move(first));
  for (size_t rank = 1; rank < names.size(); ++rank) {
    const bool is_cpu = names[rank].kind == DeviceKind::kCpu;
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                             is_cpu ? Device::CreateCpu(executors[rank]) : Device::CreateCuda(names[rank].ordinal));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace coppice
