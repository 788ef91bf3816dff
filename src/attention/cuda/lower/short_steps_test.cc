// Which steps the kernel of short decode steps takes, what it is said to take, and what that means for what is shared.
#include "attention/cuda/lower/short_steps.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/plan.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention::cuda {
namespace {

using attention::testing::TestForest;

constexpr AttentionSpec kSpec{.num_qo_heads = 32, .num_kv_heads = 4, .head_dim = 64};

BackendTraits Traits(bool has_short_steps) {
  BackendTraits traits = TraitsOf({.path = KernelPath::kHopper, .head_dim = 64, .kv_tile = 192}, kSpec, 132);
  traits.short_step_queries = has_short_steps ? kShortMaxQueries : 0;
  traits.has_wide_short_steps = has_short_steps;
  return traits;
}

struct Planned {
  PlanStats stats;
  int32_t cluster;
};
Planned Plan(const TestForest& forest, const BackendTraits& traits, const PlannerOptions& options = {}) {
  const auto planner = Planner::Create(kSpec, forest.Capacity(), options, traits, ShippedMachineModel("h200").value()).value();
  EXPECT_TRUE(planner->Update(forest.Forest()).ok());
  return {planner->Stats(), ShortLaunchOf(traits, planner->View(), forest.Forest()).cluster};
}

TEST(ShortSteps, ClustersAreWideForOneLongSequence) {
  const BackendTraits traits = Traits(true);
  const auto launch = [&](int32_t queries, int32_t longest) { return ShortLaunchOf(traits, kSpec, queries, longest); };
  EXPECT_EQ(launch(1, 100).cluster, 8);
  EXPECT_EQ(launch(1, 768).cluster, 8);
  EXPECT_EQ(launch(1, 769).cluster, 16);
  EXPECT_EQ(launch(1, 4096).cluster, 16);
  EXPECT_EQ(launch(1, 4096).cta_tokens, 256);
  EXPECT_FALSE(launch(1, 4097));
  EXPECT_EQ(launch(2, 769).cluster, 16);
  EXPECT_EQ(launch(3, 769).cluster, 8) << "more tasks than wide clusters";
  EXPECT_EQ(launch(8, 1024).cta_tokens, 256) << "two rounds";
  EXPECT_FALSE(launch(8, 1025));
  EXPECT_EQ(launch(32, 256).cta_tokens, 256) << "eight rounds";
  EXPECT_FALSE(launch(33, 8));
  EXPECT_FALSE(launch(0, 100));
  EXPECT_FALSE(ShortLaunchOf(Traits(false), kSpec, 1, 100));
}

// Attention of a layer of TinyLlama-1.1B on an H200 (docs/kernels/short_decode.md): prompts of so many tokens and 256 more.
TEST(ShortSteps, PricesAreTheMeasuredTimes) {
  const MachineModel machine = ShippedMachineModel("h200").value();
  const auto predicted_us = [&](int32_t prompt, int cluster) {
    const ShortLaunch launch{.cluster = cluster, .cta_tokens = (prompt + 128) / cluster};
    return ShortStepNs(machine.short_decode, kSpec, launch) / 1e3;
  };
  EXPECT_NEAR(predicted_us(128, 8), 5.1, 0.3);
  EXPECT_NEAR(predicted_us(700, 8), 7.3, 0.3);
  EXPECT_NEAR(predicted_us(1700, 8), 10.9, 0.5);
  EXPECT_NEAR(predicted_us(128, 16), 6.0, 0.3);
  EXPECT_NEAR(predicted_us(2100, 16), 10.9, 1.5);
  EXPECT_NEAR(predicted_us(3900, 16), 15.1, 2.5);
}

// Four samples of one prompt: read together by the persistent kernel, or each for itself by that of short steps, which ends sooner.
TEST(ShortSteps, AStepIsSharedOnlyIfThatEndsSoonerThanTheKernelOfShortSteps) {
  TestForest samples;
  const int32_t root = samples.AddNode(kNoParent, 960);
  for (int i = 0; i < 4; ++i) samples.AddBranch(root, 40, 1);
  const Planned with = Plan(samples, Traits(true)), without = Plan(samples, Traits(false));
  EXPECT_EQ(with.stats.shared_nodes, 0);
  EXPECT_EQ(with.cluster, 8);
  EXPECT_LT(with.stats.predicted_ns, without.stats.predicted_ns);
  EXPECT_EQ(without.cluster, 0);

  TestForest many;  // too many tokens for that kernel
  const int32_t prefix = many.AddNode(kNoParent, 16384);
  for (int i = 0; i < 32; ++i) many.AddBranch(prefix, 40, 1);
  const Planned shared = Plan(many, Traits(true)), as_before = Plan(many, Traits(false));
  EXPECT_EQ(shared.stats.shared_nodes, 1);
  EXPECT_EQ(shared.cluster, 0);
  // By its cuts, where it was by sums: the same within what those are off.
  EXPECT_NEAR(shared.stats.predicted_ns, as_before.stats.predicted_ns, 0.05 * as_before.stats.predicted_ns);

  EXPECT_EQ(Plan(samples, Traits(true), {.force_sharing = true}).stats.shared_nodes, 1) << "whatever it takes";
}

}  // namespace
}  // namespace coppice::attention::cuda
