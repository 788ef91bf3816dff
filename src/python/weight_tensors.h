// Tensors of Python as weights for Engine::UpdateWeights. Layer: python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "coppice/engine/weights.h"

namespace coppice::python {

// Views of the tensors and what keeps their memory.
struct WeightTensors {
  std::vector<WeightTensor> tensors;
  std::vector<nanobind::ndarray<nanobind::ro>> owners;
};

// `tensors`: name -> a tensor in host memory or on the engine's GPU, by DLPack or the buffer protocol; nothing is copied. TypeError
// names what is no tensor, ValueError a dtype that is none of f32, f16 and bf16, another device, or memory that is not contiguous.
WeightTensors ToWeightTensors(const nanobind::dict& tensors);

}  // namespace coppice::python
