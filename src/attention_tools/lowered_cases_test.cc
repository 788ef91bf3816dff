// Plans of the measured shapes as an H200 would run them: what the share decision predicts is what the tasks are predicted to take.
// Host code; needs no GPU. Layer: attention, tests.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/lowered_plan.h"
#include "attention/cuda/lower/predicted_step.h"
#include "attention/plan.h"
#include "attention/testing/plan_test_forest.h"
#include "attention_tools/attention_cases.h"

namespace coppice::attention {
namespace {

// Large ones: page rows are written, but plans do not depend on them.
constexpr int32_t kPageSize = 256;

std::unique_ptr<Planner> PlanOf(const AttentionSpec& spec, const PrefixForestView& forest, const PlanCapacity& capacity,
                                const MachineModel& machine, const PlannerOptions& options) {
  const cuda::KernelChoice kernel = cuda::ChooseKernel(CudaKernels::kAuto, 9, 0, spec, capacity.page_size).value();
  auto planner = Planner::Create(spec, capacity, options, cuda::TraitsOf(kernel, spec, machine.sm.num_sms), machine).value();
  EXPECT_TRUE(planner->Update(forest).ok());
  return planner;
}

std::unique_ptr<Planner> PlanFor(const AttentionCase& c, const MachineModel& machine, OwnedForest& forest,
                                 const PlannerOptions& options = {}, bool deterministic = false) {
  if (forest.branch_node.empty()) AddUniformTree({.levels = c.Levels(), .queries = c.queries, .page_size = kPageSize}, forest);
  AttentionSpec spec = c.Spec();
  spec.deterministic = deterministic;
  return PlanOf(spec, forest.Forest(), forest.Capacity(), machine, options);
}

// The 14 trees and the 294 cells.
std::vector<AttentionCase> Cases() {
  std::vector<AttentionCase> cases = SweepCases();
  for (AttentionCase& c : HopperCases()) {
    if (c.name.starts_with("tree")) cases.push_back(std::move(c));
  }
  EXPECT_EQ(cases.size(), 294u + 14u);
  return cases;
}

double AsCutNs(const Planner& planner) {
  const cuda::LoweredPlan lowered = cuda::LoweredPlan::AtTypicalLengths(planner);
  return cuda::PredictStepNs(lowered.view());
}

// The share decision's prediction against that of the tasks.
void ExpectPredictedAlike(bool deterministic, double most_rms) {
  const MachineModel machine = ShippedMachineModel("h200").value();
  double squares = 0, furthest = 0;
  int asked = 0;  // decided by the cuts: the same functions give the same time
  std::string furthest_case;
  const std::vector<AttentionCase> cases = Cases();
  for (const AttentionCase& c : cases) {
    OwnedForest forest;
    const std::unique_ptr<Planner> planner = PlanFor(c, machine, forest, {}, deterministic);
    const double error = AsCutNs(*planner) / planner->Stats().predicted_ns - 1;
    squares += error * error;
    asked += std::abs(error) < 1e-9;
    if (std::abs(error) <= std::abs(furthest)) continue;
    furthest = error;
    furthest_case = c.name;
  }
  EXPECT_LE(std::sqrt(squares / static_cast<double>(cases.size())), most_rms)
      << "furthest: " << 100 * furthest << " %, " << furthest_case;
  EXPECT_GE(asked, 30);
}

TEST(LoweredCases, ShareDecisionAndTasksArePredictedAlike) { ExpectPredictedAlike(/*deterministic=*/false, 0.10); }

// Whose steps the planner cuts itself. Of more than a few ranges most are decided by sums, which know no cuts.
TEST(LoweredCases, DeterministicStepsArePredictedAlike) { ExpectPredictedAlike(/*deterministic=*/true, 0.20); }

// Random trees with prompts, drafts, windows and idle branches, most of them short steps.
TEST(LoweredCases, RandomForestsArePredictedAlike) {
  const MachineModel machine = ShippedMachineModel("h200").value();
  double squares = 0;
  int steps = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 rng(seed);
    const testing::TestForest forest = testing::RandomForest(rng, seed % 5 == 0 ? 9000 : 700);
    const AttentionSpec spec{
        .num_qo_heads = 32, .num_kv_heads = seed % 2 == 0 ? 8 : 32, .head_dim = 128, .window = seed % 7 == 0 ? 300 : 0};
    const PlannerOptions options{.policy = static_cast<SharePolicy>(seed % 3), .force_sharing = seed % 4 == 0};
    const std::unique_ptr<Planner> planner = PlanOf(spec, forest.Forest(), forest.Capacity(), machine, options);
    if (planner->View().compute_queue.empty() && planner->View().bandwidth_queue.empty()) continue;
    const double error = AsCutNs(*planner) / planner->Stats().predicted_ns - 1;
    squares += error * error;
    ++steps;
  }
  EXPECT_GT(steps, 250);
  EXPECT_LE(std::sqrt(squares / steps), 0.10);
}

// A plan that shares is predicted to end sooner, as it is cut, than the plan that shares nothing, as that is cut; on each card.
TEST(LoweredCases, SharedStepsEndSoonerAsCut) {
  for (const char* const card : {"h200", "h100"}) {
    for (const bool deterministic : {false, true}) {
      const MachineModel machine = ShippedMachineModel(card).value();
      int shared = 0;
      for (const AttentionCase& c : Cases()) {
        SCOPED_TRACE(card + (" " + c.name) + (deterministic ? ", deterministic" : ""));
        OwnedForest forest;
        const std::unique_ptr<Planner> tree = PlanFor(c, machine, forest, {}, deterministic);
        if (tree->Stats().shared_nodes == 0) continue;
        ++shared;
        EXPECT_LT(AsCutNs(*tree), AsCutNs(*PlanFor(c, machine, forest, {.policy = SharePolicy::kStore}, deterministic)));
      }
      EXPECT_GE(shared, 14 + 117) << card;
    }
  }
}

// On an H100, whose memory dense tiles alone nearly fill in A2, part of the SMs stream from the start (measured: 0.562 ms on 96
// that compute, 0.577 on all); on an H200 all compute, overlapped with streaming.
TEST(LoweredCases, SmsArePartitionedWhereDenseTilesNearlyFillTheMemory) {
  const auto dense_ctas = [](const char* card) {
    for (const AttentionCase& c : HopperCases()) {
      if (c.name != "A2") continue;
      OwnedForest forest;
      const std::unique_ptr<Planner> planner = PlanFor(c, ShippedMachineModel(card).value(), forest);
      return cuda::LoweredPlan(*planner).view().translator.header().dense_ctas;
    }
    return 0;
  };
  EXPECT_EQ(dense_ctas("h200"), 132);
  EXPECT_GE(dense_ctas("h100"), 86);
  EXPECT_LE(dense_ctas("h100"), 107);
}

}  // namespace
}  // namespace coppice::attention
