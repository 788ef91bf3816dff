// The tensors of Engine::UpdateWeights as views that a model's weights are read from. Layer: engine.
#pragma once

#include <span>

#include "coppice/core/status.h"
#include "coppice/engine/weights.h"
#include "model/weights.h"

namespace coppice {

// INVALID_ARGUMENT names a tensor that is there twice, has no data, or a shape that is none.
Result<TensorMap> TensorMapOf(std::span<const WeightTensor> tensors);

}  // namespace coppice
