// The predicted time of a step as it was cut for SMs and warps, by the arithmetic that the share decision goes by (CostModel): its
// counts come from the tasks in place of the tree. Layer: attention/cuda.
#pragma once

#include "attention/cuda/lower/lowered_plan.h"

namespace coppice::attention::cuda {

// At the lengths that the plan was translated for. REQUIRES: a cost model with latencies.
double PredictStepNs(const LoweredView& lowered);

}  // namespace coppice::attention::cuda
