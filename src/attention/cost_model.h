// Predicted time of an item: max(bytes / bandwidth, flops / rate) plus fixed costs (literature: roofline; Bifurcated section 4,
// RelayAttention eq. 10). Constants are measured by `coppice bench calibrate` or shipped per chip.
// Layer: attention, private.
#pragma once

#include <cstdint>
#include <string>

#include "coppice/attention.h"

namespace coppice::attention {

// Rates of one machine, all workers together.
struct MachineModel {
  std::string name = "generic";
  double read_bytes_per_s = 0;        // KV from memory
  double cache_bytes_per_s = 0;       // KV that another item of the same step has just read (L3 / L2)
  double dense_flops_per_s = 0;       // dense tiles, full rows
  double stream_flops_per_s = 0;      // stream tiles
  double item_fixed_ns = 0;           // start of an item
  double state_bytes_per_s = 0;       // partial states, written and read
  double merge_fixed_ns = 0;          // per merge set with more than one contribution
};

}  // namespace coppice::attention
