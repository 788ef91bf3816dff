#include "model/window_layers.h"

#include <algorithm>

namespace coppice {

std::vector<WindowLayers> WindowLayersOf(const ModelConfig& config) {
  const auto local = static_cast<int32_t>(std::ranges::count(config.local_layers, true));
  std::vector<WindowLayers> layers;
  if (local < config.num_layers) layers.push_back({.layers = config.num_layers - local, .window = config.window});
  if (local > 0) layers.push_back({.layers = local, .window = config.local_window});
  return layers;
}

}  // namespace coppice
