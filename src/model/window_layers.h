// Which layers of a model attend alike. Layer: model.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace coppice {

struct WindowLayers {
  int32_t layers = 0;
  int32_t window = 0;  // tokens that a token sees, itself among them; 0: all before it
};

// A model's layers by their window, those with ModelConfig::window first; at most two, each with a layer.
std::vector<WindowLayers> WindowLayersOf(const ModelConfig& config);

}  // namespace coppice
