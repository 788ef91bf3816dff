// Cards that have rates of their own, and the message for others.
#include "attention/cuda/lower/device_machine.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/plan.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention::cuda {
namespace {

TEST(DeviceMachine, OnlyCardsThatWereMeasuredHaveRatesOfTheirOwn) {
  EXPECT_STREQ(MeasuredMachine("NVIDIA H200"), "h200");
  EXPECT_STREQ(MeasuredMachine("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_STREQ(MeasuredMachine("NVIDIA H100-PCIe"), "h100");
  for (const char* name :
       {"NVIDIA GH200 480GB", "NVIDIA H20", "NVIDIA H800", "NVIDIA H2000", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"}) {
    EXPECT_EQ(MeasuredMachine(name), nullptr) << name;
  }
}

TEST(DeviceMachine, ScaledRatesSayWhatTheyAreScaledFrom) {
  const MachineModel h100 = ShippedMachineModel("h100").value();
  const DeviceRates same{
      .bus_bytes_per_s = h100.sm.bus_bytes_per_s, .clock_hz = h100.sm.clock_hz, .flops_per_clock = kHopperFlopsPerClock};
  const DeviceDescription h20{.name = "NVIDIA H20", .num_sms = h100.sm.num_sms / 2, .l2_bytes = 60 << 20};
  const MachineModel scaled = ScaledMachine(h20, same).value();
  EXPECT_EQ(scaled.name, "NVIDIA H20");
  EXPECT_EQ(scaled.scaled_from, "h100");
  EXPECT_DOUBLE_EQ(scaled.read_bytes_per_s, h100.read_bytes_per_s);
  EXPECT_DOUBLE_EQ(scaled.dense_flops_per_s, h100.dense_flops_per_s / 2);
  EXPECT_EQ(scaled.sm.num_sms, h100.sm.num_sms / 2);

  attention::testing::TestForest forest;
  forest.AddBranch(kNoParent, 100, 1);
  const AttentionSpec spec{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  const auto explain = [&](const MachineModel& machine) {
    const BackendTraits traits = TraitsOf({.path = KernelPath::kHopper, .head_dim = 128, .kv_tile = 128}, spec, machine.sm.num_sms);
    const auto planner = Planner::Create(spec, forest.Capacity(), {}, traits, machine).value();
    EXPECT_TRUE(planner->Update(forest.Forest()).ok());
    return planner->Explain();
  };
  EXPECT_NE(explain(scaled).find("machine NVIDIA H20 (scaled from h100, not measured), 66 workers"), std::string::npos);
  EXPECT_NE(explain(h100).find("machine h100, 132 workers"), std::string::npos);
}

}  // namespace
}  // namespace coppice::attention::cuda
