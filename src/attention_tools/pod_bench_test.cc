// The batches of POD-Attention's experiments, and their parts. Needs no device.
#include "attention_tools/pod_bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "attention/plan.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention {
namespace {

constexpr double kA100 = 80e9, kH200 = 141e9;

const PodModel& Model(const std::string& name) { return *std::ranges::find(PodModels(), name, &PodModel::name); }

TEST(PodBatches, RequestsFillTheMemoryThatWeightsLeave) {
  // Llama-3-8B: 128 KiB a token. 72 GB less 16.1 GB of weights are 426,500 tokens.
  EXPECT_EQ(PodMostRequests(Model("Llama-3-8B"), 1, kA100, 16384), 26);
  // Two GPUs: half of either on each.
  EXPECT_EQ(PodMostRequests(Model("Llama-3-8B"), 2, kA100, 12288), 79) << "the paper's C0 has 80";
  EXPECT_EQ(PodMostRequests(Model("Llama-2-7B"), 1, 10e9, 4096), 0) << "the weights do not fit";
}

TEST(PodBatches, SweepGoesOverModelsGpusChunksAndContexts) {
  const std::vector<PodBatch> batches = PodBatches("sweep", kH200);
  EXPECT_EQ(batches.size(), 3u * 3 * 3 * 5 * 2);
  std::set<std::string> names;
  for (const PodBatch& b : batches) {
    names.insert(b.model->name);
    EXPECT_EQ(b.Spec().num_qo_heads, 32 / b.gpus);
    EXPECT_EQ(b.Spec().num_qo_heads % b.Spec().num_kv_heads, 0);
    EXPECT_EQ(b.prompt, b.context);
    EXPECT_GE(b.prompt, b.chunk);
  }
  EXPECT_EQ(names.size(), 3u);
}

TEST(PodBatches, EverySetHasBatchesOfItsName) {
  for (const char* set : PodSets()) {
    const std::vector<PodBatch> batches = PodBatches(set, kH200);
    ASSERT_FALSE(batches.empty()) << set;
    for (const PodBatch& b : batches) {
      EXPECT_EQ(b.set, set);
      EXPECT_GT(b.requests, 0);
      EXPECT_GE(b.prompt, b.chunk);
    }
  }
  EXPECT_EQ(PodBatches("table7", kH200).size(), 4u) << "chunks 28 to 31";
  EXPECT_EQ(PodBatches("figure6", kH200).front().prompt, 512) << "the first of 32 chunks";
  const std::vector<PodBatch> decode = PodBatches("figure10", kH200);
  EXPECT_EQ(PodForest(decode.front(), PodPart::kBoth, 16).num_queries(), 8) << "requests alone";
}

TEST(PodBatches, PartsReadThePagesOfTheWhole) {
  const PodBatch batch{.set = "", .model = &Model("Yi-6B"), .gpus = 1, .chunk = 40, .prompt = 100, .requests = 3, .context = 50};
  const OwnedForest both = PodForest(batch, PodPart::kBoth, 16), chunk = PodForest(batch, PodPart::kChunk, 16),
                    decode = PodForest(batch, PodPart::kDecode, 16);
  EXPECT_EQ(PodPages(batch, 16), 7 + 3 * 4);
  EXPECT_EQ(both.num_branches(), 4);
  EXPECT_EQ(both.num_queries(), 43);
  EXPECT_EQ(chunk.num_queries(), 40);
  EXPECT_EQ(decode.num_queries(), 3);
  std::vector<int32_t> joined = chunk.page_indices;
  joined.insert(joined.end(), decode.page_indices.begin(), decode.page_indices.end());
  EXPECT_EQ(joined, both.page_indices);
  EXPECT_EQ(std::set<int32_t>(joined.begin(), joined.end()).size(), joined.size()) << "no two share a page";
}

// Bytes and operations equal the plan's counts, so that bounds and rates are those of the work that is done.
TEST(PodBatches, BytesAndOperationsAreThePlans) {
  const PodBatch batch{
      .set = "", .model = &Model("Llama-3-8B"), .gpus = 2, .chunk = 512, .prompt = 2048, .requests = 20, .context = 1000};
  const OwnedForest forest = PodForest(batch, PodPart::kBoth, 8);
  const auto planner = Planner::Create(batch.Spec(), forest.Capacity(), {.policy = SharePolicy::kStore}, testing::H200Traits(),
                                       ShippedMachineModel("h200", 132).value());
  ASSERT_TRUE(planner.ok()) << planner.status().ToString();
  ASSERT_TRUE((*planner)->Update(forest.Forest()).ok());
  EXPECT_NEAR(static_cast<double>((*planner)->Stats().flops), batch.ChunkFlops() + batch.DecodeFlops(),
              0.01 * (batch.ChunkFlops() + batch.DecodeFlops()));
}

TEST(PodResult, OracleIsTheLongerPartAndBothCountFromAFifthOn) {
  const auto result = [](double serial, double chunk, double decode) {
    const auto row = [](PodWay way, double seconds) { return PodRow{way, {.times = {seconds}, .over_first = {}}}; };
    return PodResult{.batch = {},
                     .rows = {row(PodWay::kSerial, serial), row(PodWay::kChunkAlone, chunk), row(PodWay::kDecodeAlone, decode)}};
  };
  EXPECT_EQ(result(10, 7, 3.5).OracleSeconds(), 7);
  EXPECT_TRUE(result(10, 8, 2).BothCount());
  EXPECT_FALSE(result(10, 8, 1.9).BothCount());
  EXPECT_FALSE(result(10, 8, 2).Has(PodWay::kOverlappedTiles));
}

TEST(PodResult, RequestsAloneHaveNothingToOverlap) {
  const PodResult result{
      .batch = {.requests = 8},
      .rows = {{PodWay::kSerial, {.times = {10}, .over_first = {}}}, {PodWay::kDecodeAlone, {.times = {9}, .over_first = {}}}}};
  EXPECT_EQ(result.OracleSeconds(), 9);
  EXPECT_FALSE(result.BothCount());
}

}  // namespace
}  // namespace coppice::attention
