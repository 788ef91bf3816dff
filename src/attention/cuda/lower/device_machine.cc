// Machine models by card. Layer: attention/cuda.
#include "attention/cuda/lower/device_machine.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

constexpr const char* kScaledFrom = "h100";

// As a word of its own.
bool Names(const std::string& device_name, std::string_view card) {
  const size_t at = device_name.find(card), end = at + card.size();
  if (at == std::string::npos) return false;
  const auto is_part = [&](size_t i) { return std::isalnum(static_cast<unsigned char>(device_name[i])) != 0; };
  return (at == 0 || !is_part(at - 1)) && (end == device_name.size() || !is_part(end));
}

}  // namespace

const char* MeasuredMachine(const std::string& device_name) {
  if (Names(device_name, "H200")) return "h200";
  return Names(device_name, "H100") ? "h100" : nullptr;
}

Result<MachineModel> ScaledMachine(const DeviceDescription& device, const DeviceRates& rates) {
  COPPICE_ASSIGN_OR_RETURN(MachineModel machine, ShippedMachineModel(kScaledFrom));
  const double memory = rates.bus_bytes_per_s / machine.sm.bus_bytes_per_s;
  const double generation = std::min(1.0, rates.flops_per_clock / kHopperFlopsPerClock);
  const double compute = device.num_sms * rates.clock_hz / (machine.sm.num_sms * machine.sm.clock_hz);
  machine.name = device.name;
  machine.scaled_from = kScaledFrom;
  machine.probe = {};  // of the card that it is scaled from
  if (memory > 0) machine.read_bytes_per_s *= memory;
  machine.cache_bytes = static_cast<double>(device.l2_bytes);
  machine.cache_bytes_per_s *= compute;
  machine.state_bytes_per_s *= compute;
  machine.dense_flops_per_s *= compute * generation;
  machine.stream_flops_per_s *= compute * generation;
  machine.sm.num_sms = device.num_sms;
  if (memory > 0) machine.sm.memory_bytes_per_s *= memory;
  machine.sm.dense_flops_per_s *= compute * generation;
  return machine;
}

}  // namespace coppice::attention::cuda
