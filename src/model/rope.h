// Rotary frequencies of a model, with the scaling that its config asks for.
// Layer: model.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace coppice {

// [head_dim / 2] radians per position: theta^(-2 i / head_dim), scaled (linear: divided by factor; llama3: long wavelengths
// divided, short ones kept, a linear blend between) and divided by the config's own divisors. Computed in double, rounded once.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int32_t head_dim);

}  // namespace coppice
