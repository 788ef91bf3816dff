// A GPU's sensors while it runs, by the driver's management library (NVML). Layer: attention, private.
#pragma once

#include <string>

#include "coppice/core/status.h"

namespace coppice::attention::cuda {

struct GpuReadings {
  double sm_mhz = 0;  // clock of the SMs
  double watts = 0;   // of the board, as the driver averages it (on a Hopper card over a second)
};

// Loads libnvidia-ml.so.1, a part of the driver, while the program runs: its header is not in every toolkit. Not thread-safe.
class GpuSensors {
 public:
  // `pci_bus_id`: as cudaDeviceGetPCIBusId writes it. Errors: UNAVAILABLE where the library or the device cannot be opened.
  static Result<GpuSensors> Open(const std::string& pci_bus_id);
  GpuSensors(GpuSensors&& other) noexcept;
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;
  ~GpuSensors();

  // Errors: UNAVAILABLE where the driver does not say.
  Result<GpuReadings> Read() const;

 private:
  using ReadValue = int (*)(void* device, unsigned* value);
  using ReadClock = int (*)(void* device, int domain, unsigned* mhz);

  explicit GpuSensors(void* library) : library_(library) {}

  void* library_;
  void* device_ = nullptr;
  ReadClock read_clock_ = nullptr;
  ReadValue read_power_ = nullptr;
};

}  // namespace coppice::attention::cuda
