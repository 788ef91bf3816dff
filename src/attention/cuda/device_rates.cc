#include "attention/cuda/device_rates.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"

namespace coppice::attention::cuda {
namespace {

// NVIDIA's architecture whitepapers: A100, GA102, H100, Blackwell. Of 8.6 and 8.9 those of the professional cards: GeForce has
// half.
double FlopsPerClock(int major, int minor) {
  if (major == 8) return kHopperFlopsPerClock / (minor == 0 ? 2 : 4);
  return major == 9 ? kHopperFlopsPerClock : 2 * kHopperFlopsPerClock;
}

}  // namespace

Result<DeviceRates> RatesOf(int device) {
  int memory_khz = 0, bus_bits = 0, core_khz = 0, major = 0, minor = 0;
  for (const auto& [value, attribute] : {std::pair{&memory_khz, cudaDevAttrMemoryClockRate},
                                         {&bus_bits, cudaDevAttrGlobalMemoryBusWidth},
                                         {&core_khz, cudaDevAttrClockRate},
                                         {&major, cudaDevAttrComputeCapabilityMajor},
                                         {&minor, cudaDevAttrComputeCapabilityMinor}}) {
    COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute"));
  }
  constexpr double kTransfersPerClock = 2;
  return DeviceRates{.bus_bytes_per_s = kTransfersPerClock * 1e3 * memory_khz * bus_bits / 8,
                     .clock_hz = 1e3 * core_khz,
                     .flops_per_clock = FlopsPerClock(major, minor)};
}

}  // namespace coppice::attention::cuda
