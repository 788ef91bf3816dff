#include "attention_tools/cuda/gpu_sensors.h"

#include <dlfcn.h>

#include <utility>

namespace coppice::attention::cuda {
namespace {

constexpr int kSmClock = 1;  // NVML_CLOCK_SM
constexpr const char* kLibrary = "libnvidia-ml.so.1";

Status Refused(const std::string& what, int code) {
  return Unavailable(std::string(kLibrary) + ": " + what + " failed with code " + std::to_string(code) + "; nvidia-smi says more");
}

}  // namespace

Result<GpuSensors> GpuSensors::Open(const std::string& pci_bus_id) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable(std::string(dlerror()) + "; the NVIDIA driver brings it");
  GpuSensors sensors(library);
  const auto initialize = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto find = reinterpret_cast<int (*)(const char*, void**)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  sensors.read_clock_ = reinterpret_cast<ReadClock>(dlsym(library, "nvmlDeviceGetClockInfo"));
  sensors.read_power_ = reinterpret_cast<ReadValue>(dlsym(library, "nvmlDeviceGetPowerUsage"));
  if (initialize == nullptr || find == nullptr || sensors.read_clock_ == nullptr || sensors.read_power_ == nullptr) {
    return Unavailable(std::string(kLibrary) + " lacks a function of NVML 5 or later; update the driver");
  }
  if (const int code = initialize(); code != 0) return Refused("nvmlInit", code);
  if (const int code = find(pci_bus_id.c_str(), &sensors.device_); code != 0) return Refused("the look-up of " + pci_bus_id, code);
  return sensors;
}

GpuSensors::GpuSensors(GpuSensors&& other) noexcept
    : library_(std::exchange(other.library_, nullptr)),
      device_(other.device_),
      read_clock_(other.read_clock_),
      read_power_(other.read_power_) {}

GpuSensors::~GpuSensors() {
  if (library_ != nullptr) dlclose(library_);
}

Result<GpuReadings> GpuSensors::Read() const {
  unsigned mhz = 0, milliwatts = 0;
  if (const int code = read_clock_(device_, kSmClock, &mhz); code != 0) return Refused("reading the clock", code);
  if (const int code = read_power_(device_, &milliwatts); code != 0) return Refused("reading the power", code);
  return GpuReadings{.sm_mhz = static_cast<double>(mhz), .watts = milliwatts * 1e-3};
}

}  // namespace coppice::attention::cuda
