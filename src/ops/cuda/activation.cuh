// The activations of ops.h on one fp32 value. Layer: ops/cuda.
#pragma once

#include "ops/ops.h"

namespace coppice::ops::cuda {

__device__ inline float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu: return x / (1.0f + expf(-x));
    case Activation::kGeluTanh: {
      const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);  // sqrt(2 / pi)
      return x / (1.0f + expf(-2.0f * u));
    }
    case Activation::kGelu: return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
  }
  return x;
}

}  // namespace coppice::ops::cuda
