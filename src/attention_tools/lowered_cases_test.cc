// Plans of the measured shapes as an H200 would run them: what the share decision predicts is what the tasks are predicted to take.
// Host code; needs no GPU. Layer: attention, tests.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/lowered_plan.h"
#include "attention/cuda/lower/predicted_step.h"
#include "attention/plan.h"
#include "attention_tools/attention_cases.h"

namespace coppice::attention {
namespace {

// Large ones: page rows are written, but plans do not depend on them.
constexpr int32_t kPageSize = 256;

std::unique_ptr<Planner> PlanFor(const AttentionCase& c, const MachineModel& machine, OwnedForest& forest) {
  AddUniformTree({.levels = c.Levels(), .queries = c.queries, .page_size = kPageSize}, forest);
  const AttentionSpec spec = c.Spec();
  const cuda::KernelChoice kernel = cuda::ChooseKernel(CudaKernels::kAuto, 9, 0, spec, kPageSize).value();
  auto planner = Planner::Create(spec, forest.Capacity(), {}, cuda::TraitsOf(kernel, spec, machine.sm.num_sms), machine).value();
  EXPECT_TRUE(planner->Update(forest.Forest()).ok());
  return planner;
}

TEST(LoweredCases, ShareDecisionAndTasksArePredictedAlike) {
  const MachineModel machine = ShippedMachineModel("h200").value();
  std::vector<AttentionCase> cases = SweepCases();
  for (AttentionCase& c : HopperCases()) {
    if (c.name.starts_with("tree")) cases.push_back(std::move(c));
  }
  EXPECT_EQ(cases.size(), 294u + 14u);
  double squares = 0, furthest = 0;
  std::string furthest_case;
  for (const AttentionCase& c : cases) {
    OwnedForest forest;
    const std::unique_ptr<Planner> planner = PlanFor(c, machine, forest);
    const cuda::LoweredPlan lowered = cuda::LoweredPlan::AtTypicalLengths(*planner);
    const double error = cuda::PredictStepNs(lowered.view()) / planner->Stats().predicted_ns - 1;
    squares += error * error;
    if (std::abs(error) <= std::abs(furthest)) continue;
    furthest = error;
    furthest_case = c.name + " " + std::to_string(c.qo_heads) + "/" + std::to_string(c.kv_heads) + " P " +
                    std::to_string(c.tokens[0]) + " U " + std::to_string(c.tokens.back()) + " B " + std::to_string(c.nodes.back());
  }
  EXPECT_LE(std::sqrt(squares / static_cast<double>(cases.size())), 0.10)
      << "furthest: " << 100 * furthest << " %, " << furthest_case;
}

}  // namespace
}  // namespace coppice::attention
