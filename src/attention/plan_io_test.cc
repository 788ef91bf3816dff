// Text that is no plan dump, or one that no planner could have written, is refused by name. Layer: attention, tests.
#include "attention/plan_io.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "attention/former_names.h"

namespace coppice::attention {
namespace {

using nlohmann::json;

std::string Message(std::string_view text) { return ParsePlanDump(text).status().message(); }

json ValidDump() {
  OwnedForest forest;
  forest.AddBranch(forest.AddNode(kNoParent, 0, kLive), 5, 1, std::vector<int32_t>{0});
  const Result<std::unique_ptr<Planner>> planner = Planner::Create(
      {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64}, forest.Capacity(), {},
      {.workers = 2, .dense_tile_rows = 64, .dense_min_rows = 8, .kv_tile = 64}, ShippedMachineModel("zen5", 2).value());
  EXPECT_TRUE((*planner)->Update(forest.Forest()).ok());
  return json::parse(DumpPlan(**planner));
}

TEST(PlanIo, RefusesWhatIsNoDump) {
  EXPECT_NE(Message("nonsense").find("not a JSON object"), std::string::npos);
  EXPECT_NE(Message(std::string(200000, '[') + std::string(200000, ']')).find("nested deeper than 64"), std::string::npos);
  EXPECT_NE(Message("{}").find("'dump.format' is missing"), std::string::npos);
  EXPECT_NE(Message(R"({"format": 7})").find("format is 7, this build reads 1"), std::string::npos);
  EXPECT_NE(Message(R"({"format": 1})").find("'spec' is not an object"), std::string::npos);
  EXPECT_NE(Message(R"({"format": 1, "spec": {"num_qo_heads": "8"}})").find("'spec.num_qo_heads' is \"8\", expected an integer"),
            std::string::npos);
}

TEST(PlanIo, ReadsFormerNamesOfTraits) {
  json dump = ValidDump();
  const PlanDump expected = ParsePlanDump(dump.dump()).value();
  for (const auto& [now, former] : kFormerTraitNames) {
    json& traits = dump["traits"];
    traits[std::string(former)] = traits.at(std::string(now));
    traits.erase(std::string(now));
  }
  const Result<PlanDump> parsed = ParsePlanDump(dump.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->traits.stream_warps, expected.traits.stream_warps);
  EXPECT_EQ(parsed->traits.cooperative_warps, expected.traits.cooperative_warps);
  EXPECT_EQ(parsed->traits.two_column_rows, expected.traits.two_column_rows);
}

TEST(PlanIo, RefusesNumbersThatDoNotFit) {
  const json valid = ValidDump();
  ASSERT_EQ(Message(valid.dump()), "");
  // A JSON pointer, a value, and what the message says.
  const std::tuple<const char*, json, const char*> cases[] = {
      {"/traits/kv_tile", 4294967296, "'traits.kv_tile' is 4294967296, expected an integer from -2147483648 to 2147483647"},
      {"/traits/kv_tile", 0, "'traits.kv_tile' is 0, expected 1 to 65536"},
      {"/traits/kv_tile", 2147483647, "'traits.kv_tile' is 2147483647, expected 1 to 65536"},
      {"/traits/workers", -1, "'traits.workers' is -1, expected 1 to"},
      {"/traits/dense_tile_rows", 0, "'traits.dense_tile_rows' is 0"},
      {"/traits/dense_min_rows", 1 << 20, "'traits.dense_min_rows' is 1048576"},
      {"/traits/dense_row_unit", -5, "'traits.dense_row_unit' is -5"},
      {"/traits/stream_warps", 0, "'traits.stream_warps' is 0"},
      {"/traits/cooperative_warps", -1, "'traits.cooperative_warps' is -1"},
      {"/traits/max_item_rows", -1, "'traits.max_item_rows' is -1"},
      {"/traits/max_heads_per_task", 70000, "'traits.max_heads_per_task' is 70000"},
      {"/traits/native_head_dim", -64, "'traits.native_head_dim' is -64"},
      {"/traits/deterministic_unit", 0, "'traits.deterministic_unit' is 0, expected 1 to 65536"},
      {"/traits/deterministic_unit", -512, "'traits.deterministic_unit' is -512"},
      {"/traits/deterministic_unit", 1 << 30, "'traits.deterministic_unit' is 1073741824"},
      {"/traits/dense_latency", 0, "'traits.dense_latency' is 0.000000, expected 0.001000 to 1000.000000"},
      {"/traits/stream_cache_share", -1, "'traits.stream_cache_share' is -1.000000, expected 0.001000 to"},
      {"/traits/two_column_rows", -1, "'traits.two_column_rows' is -1, expected 0 to"},
      {"/traits/max_set_contributions", -1, "'traits.max_set_contributions' is -1, expected 0 to"},
      {"/forest/version", -1, "'forest.version' is -1, expected an integer from 0 to 18446744073709551615"},
      {"/forest/node_begin/0", 4294967296, "'forest.node_begin' holds 4294967296, expected integers"},
      {"/forest/page_indices/0", 0.5, "'forest.page_indices' holds 0.5"},
      {"/forest/query_tree_mask", {-1}, "'forest.query_tree_mask' holds -1"},
      {"/capacity/max_branches", 1e300, "'capacity.max_branches' is 1e+300"},
      {"/spec/q_dtype", "\xff\n", "'spec.q_dtype' is "},
  };
  for (const auto& [place, value, expected] : cases) {
    json dump = valid;
    dump[json::json_pointer(place)] = value;
    const std::string message = Message(dump.dump(-1, ' ', false, json::error_handler_t::replace));
    EXPECT_NE(message.find(expected), std::string::npos) << place << ": " << message;
  }
}

}  // namespace
}  // namespace coppice::attention
