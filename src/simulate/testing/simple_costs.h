// Costs that a test can add up in its head: every step takes a second, attention next to nothing. Layer: simulate, tests.
#pragma once

#include <vector>

#include "attention/machine_model.h"
#include "simulate/replica.h"

namespace coppice::simulate::testing {

inline std::vector<LayerKind> OneLayer() {
  return {{.spec = {.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 64}, .traits = {.workers = 4}, .layers = 1}};
}

inline attention::MachineModel Machine() { return attention::ShippedMachineModel("zen5", 4).value(); }

inline Costs OneSecondSteps() {
  constexpr double kHead = 1e-9;  // what draws take more; the rest is attention's microseconds
  return {.steps = StepTimes::FromTable({{1, 1.0}, {1024, 1.0}}, {{1, 1.0 + kHead}, {1024, 1.0 + kHead}}).value(),
          .attention = AttentionTimes(OneLayer(), Machine())};
}

}  // namespace coppice::simulate::testing
