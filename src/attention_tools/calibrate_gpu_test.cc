// How a model follows the rates of a card. Layer: attention, tests.
#include "attention_tools/calibrate_gpu.h"

#include <gtest/gtest.h>

#include <string>

namespace coppice::attention {
namespace {

MachineModel Reference() {
  MachineModel model = ShippedMachineModel("h200").value();
  model.probe = {.memory_bytes_per_s = 4e12,
                 .cache_bytes_per_s = 8e12,
                 .dense_flops_per_s = 600e12,
                 .launch_ns = 10e3,
                 .dense_task_ns = 30e3,
                 .stream_task_ns = 5e3,
                 .stream_token_ns = 12e3,
                 .cooperative_step_ns = 1500,
                 .fold_ns = 2e3};
  return model;
}

TEST(ScaleToProbe, TheCardOfTheReferenceKeepsItsModel) {
  const MachineModel reference = Reference();
  EXPECT_EQ(ToJson(ScaleToProbe(reference, reference.probe).value()), ToJson(reference));
}

TEST(ScaleToProbe, EachNumberFollowsItsRate) {
  const MachineModel reference = Reference();
  GpuProbe probe = reference.probe;
  probe.memory_bytes_per_s /= 2;
  probe.dense_flops_per_s *= 4;
  probe.fold_ns *= 3;
  const MachineModel model = ScaleToProbe(reference, probe).value();
  EXPECT_DOUBLE_EQ(model.read_bytes_per_s, reference.read_bytes_per_s / 2);
  EXPECT_DOUBLE_EQ(model.sm.memory_bytes_per_s, reference.sm.memory_bytes_per_s / 2);
  EXPECT_DOUBLE_EQ(model.dense_flops_per_s, reference.dense_flops_per_s * 4);
  EXPECT_DOUBLE_EQ(model.dense_token_ns, reference.dense_token_ns / 4);
  EXPECT_DOUBLE_EQ(model.sm.fold_pass_ns, reference.sm.fold_pass_ns * 3);
  EXPECT_DOUBLE_EQ(model.sm.cooperative_merge_ns, reference.sm.cooperative_merge_ns * 3);
  EXPECT_EQ(model.cache_bytes_per_s, reference.cache_bytes_per_s);
  EXPECT_EQ(model.sm.cooperative_step_ns, reference.sm.cooperative_step_ns);
  EXPECT_EQ(model.probe.fold_ns, probe.fold_ns);
  EXPECT_TRUE(ParseMachineModel(ToJson(model)).ok());
}

TEST(ScaleToProbe, NeedsAReferenceThatWasProbed) {
  MachineModel reference = Reference();
  const GpuProbe probe = reference.probe;
  reference.probe = {};
  const Status status = ScaleToProbe(reference, probe).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'h200' has no 'probe'"), std::string::npos);
}

}  // namespace
}  // namespace coppice::attention
