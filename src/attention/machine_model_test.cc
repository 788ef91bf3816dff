// Machine models as JSON: shipped ones, files, what is refused. Layer: attention, tests.
#include "attention/machine_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "attention/cpu/cpu_features.h"
#include "attention/former_names.h"

namespace coppice::attention {
namespace {

TEST(MachineModel, JsonRoundTrip) {
  for (const std::string_view name : ShippedMachineNames()) {
    SCOPED_TRACE(name);
    const MachineModel model = ShippedMachineModel(name, 4).value();
    const Result<MachineModel> parsed = ParseMachineModel(ToJson(model));
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_EQ(parsed->name, name);
    EXPECT_EQ(ToJson(*parsed), ToJson(model));
  }
  EXPECT_TRUE(ShippedMachineModel(cpu::HostCpuModelName()).ok());
  EXPECT_EQ(ShippedMachineModel("z80").status().code(), StatusCode::kNotFound);
}

// In `json` each field's present name becomes its former one.
std::string WithFormerNames(std::string json) {
  for (const auto& [now, former] : kFormerMachineNames) {
    const std::string quoted = "\"" + std::string(now) + "\"";
    for (size_t at = json.find(quoted); at != std::string::npos; at = json.find(quoted, at)) {
      json.replace(at + 1, now.size(), former);
    }
  }
  return json;
}

TEST(MachineModel, ReadsFormerNamesOfFields) {
  const std::string json = ToJson(ShippedMachineModel("h200").value()), former = WithFormerNames(json);
  for (const auto& [now, before] : kFormerMachineNames) {
    EXPECT_NE(former.find("\"" + std::string(before) + "\""), std::string::npos) << before;
  }
  const Result<MachineModel> parsed = ParseMachineModel(former);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(ToJson(*parsed), json);
  // With both there the present name decides.
  std::string both = json;
  both.insert(both.find("\"cooperative_launch_ns\""), "\"" + std::string(kFormerMachineNames[1].former) + "\": 1, ");
  EXPECT_EQ(ToJson(ParseMachineModel(both).value()), json);
}

TEST(MachineModel, SavesAndLoadsFiles) {
  const std::string path = (std::filesystem::temp_directory_path() / "coppice_machine_model_test.json").string();
  const MachineModel model = ShippedMachineModel("zen5", 2).value();
  ASSERT_TRUE(SaveMachineModel(model, path).ok());
  EXPECT_EQ(ToJson(LoadMachineModel(path).value()), ToJson(model));
  std::filesystem::remove(path);
  EXPECT_EQ(LoadMachineModel(path).status().code(), StatusCode::kNotFound);
}

TEST(MachineModel, RefusesBadJson) {
  const auto message = [](const std::string& json) { return ParseMachineModel(json).status().message(); };
  EXPECT_NE(message("[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message("{}").find("'read_bytes_per_s' is missing"), std::string::npos);
  EXPECT_NE(message(R"({"speed": 3})").find("unknown field 'speed'"), std::string::npos);
  MachineModel model = ShippedMachineModel("zen5").value();
  model.item_fixed_ns = -4;
  EXPECT_NE(message(ToJson(model)).find("'item_fixed_ns' is -4.0, expected a positive number"), std::string::npos);
  EXPECT_NE(message(R"({"per_worker": 3})").find("'per_worker' is not an object"), std::string::npos);
  EXPECT_NE(message(R"({"per_worker": {"item_fixed_ns": 3}})").find("unknown field 'per_worker.item_fixed_ns'"), std::string::npos);
  MachineModel gpu = ShippedMachineModel("h200").value();
  gpu.sm.fold_pass_ns = 0;
  EXPECT_NE(message(ToJson(gpu)).find("'fold_pass_ns' is 0.0, expected a positive number"), std::string::npos);
  const auto with_sm = [&](const std::string& sm) {
    return message(ToJson(ShippedMachineModel("zen5").value()).insert(1, R"("sm": )" + sm + ","));
  };
  EXPECT_NE(with_sm(R"({"num_sms": 132})").find("'clock_hz' is missing; write the file anew with `coppice bench calibrate`"),
            std::string::npos);
  EXPECT_NE(with_sm(R"({"num_sms": "all"})").find("'num_sms' is not a number"), std::string::npos);
  EXPECT_NE(with_sm("1").find("'sm' is not an object"), std::string::npos);
  EXPECT_NE(with_sm("{}").find("'num_sms' is missing"), std::string::npos);
  EXPECT_NE(with_sm(R"({"num_sms": 1.5})").find("'num_sms' is 1.5, expected a whole number"), std::string::npos);
  EXPECT_NE(with_sm(R"({"warps": 4})").find("unknown field 'sm.warps'"), std::string::npos);
  gpu = ShippedMachineModel("h200").value();
  gpu.unhidden_reread = 0;
  EXPECT_NE(message(ToJson(gpu)).find("'unhidden_reread' is missing or 0; a model with 'sm' needs it"), std::string::npos);
  gpu = ShippedMachineModel("h200").value();
  gpu.probe.fold_ns = -1;
  EXPECT_NE(message(ToJson(gpu)).find("'fold_ns' is -1.0, expected a positive number"), std::string::npos);
  EXPECT_NE(message(ToJson(ShippedMachineModel("zen5").value()).insert(1, R"("probe": {"clock": 1},)")).find("'probe.clock'"),
            std::string::npos);
  gpu = ShippedMachineModel("h200").value();
  gpu.short_decode.byte_ns = 0;
  EXPECT_NE(message(ToJson(gpu)).find("'byte_ns' is 0.0, expected a positive number"), std::string::npos);
}

// As files of builds before it.
TEST(MachineModel, TheKernelOfShortStepsMayHaveNoRates) {
  MachineModel gpu = ShippedMachineModel("h200").value();
  EXPECT_TRUE(gpu.short_decode.known());
  gpu.short_decode = {};
  const Result<MachineModel> parsed = ParseMachineModel(ToJson(gpu));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_FALSE(parsed->short_decode.known());
}

// Core rates add up until the socket's memory is full; times and caches are what they are.
TEST(MachineModel, RatesOfCoresAddUp) {
  const MachineModel one = ShippedMachineModel("zen5").value(), many = ShippedMachineModel("zen5", 64).value();
  EXPECT_EQ(many.dense_flops_per_s, 64 * one.dense_flops_per_s);
  EXPECT_EQ(one.read_bytes_per_s, 25e9);
  EXPECT_EQ(many.read_bytes_per_s, 500e9);
  EXPECT_EQ(many.cache_bytes, one.cache_bytes);
  EXPECT_EQ(many.item_fixed_ns, one.item_fixed_ns);
}

// A cache without a bound is said so, and by no large number.
TEST(MachineModel, ACacheMayHaveNoBound) {
  const MachineModel gpu = ShippedMachineModel("h200").value();
  EXPECT_TRUE(std::isinf(gpu.cache_bytes));
  const std::string json = ToJson(gpu);
  EXPECT_NE(json.find(R"("cache_bytes": null)"), std::string::npos) << json;
  EXPECT_TRUE(std::isinf(ParseMachineModel(json, 1).value().cache_bytes));
  MachineModel bounded = gpu;
  bounded.cache_bytes = 50e6;
  EXPECT_EQ(ParseMachineModel(ToJson(bounded), 1).value().cache_bytes, 50e6);
  MachineModel unknown = gpu;
  unknown.read_bytes_per_s = INFINITY;
  EXPECT_NE(ParseMachineModel(ToJson(unknown), 1).status().message().find("'read_bytes_per_s' is not a number"), std::string::npos);
}

TEST(MachineModel, EveryGpuHasRatesOfItsSms) {
  for (const std::string_view name : ShippedMachineNames()) {
    const MachineModel model = ShippedMachineModel(name).value();
    EXPECT_EQ(model.sm.num_sms > 0, model.launch_ns > 0) << name;
  }
}

}  // namespace
}  // namespace coppice::attention
