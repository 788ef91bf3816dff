// Rotary frequencies of a model, with the scaling that its config asks for.
// Layer: model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace coppice {

// [rotary_dim / 2] radians per position: theta^(-2 i / rotary_dim), scaled (linear: divided by factor; llama3: long wavelengths
// divided, short ones kept, a linear blend between; yarn: the same by dimension, arXiv 2309.00071) and divided by the config's own
// divisors, which `max_context` tokens choose where there are two sets (longrope); dynamic scaling's theta follows from
// `max_context`. Computed in double, rounded once.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int32_t rotary_dim, int32_t max_context);

// Names the frequencies among those that other contexts would choose; empty for those of the original context. KV computed with
// other ones is of no use.
std::string FrequencyChoice(const RopeConfig& rope, int32_t max_context);

}  // namespace coppice
