// The measured shapes as forests: what a case says that it reads and computes is what its forest holds and its plan counts.
// Host code; needs no GPU. Layer: attention, tests.
#include "attention_tools/case_forest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/plan.h"
#include "attention_tools/attention_cases.h"

namespace coppice::attention {
namespace {

constexpr int32_t kPageSize = 16;

std::unique_ptr<Planner> PlanFor(const AttentionCase& c, const CaseForest& forest) {
  const MachineModel machine = ShippedMachineModel("h200").value();
  const AttentionSpec spec = c.Spec();
  const PlanCapacity capacity{.max_branches = static_cast<int32_t>(forest.branch_node.size()),
                              .max_queries = forest.num_queries(),
                              .max_page_slots = static_cast<int32_t>(forest.pages.size())};
  const cuda::KernelChoice kernel = cuda::ChooseKernel(CudaKernels::kAuto, 9, 0, spec, kPageSize).value();
  auto planner = Planner::Create(spec, capacity, {}, cuda::TraitsOf(kernel, spec, machine.sm.num_sms), machine).value();
  const Status status = planner->Update(forest.view);
  EXPECT_TRUE(status.ok()) << c.name << ": " << status.ToString();
  return planner;
}

// Pages below the requests' lengths, each counted once.
size_t DistinctPages(const CaseForest& forest) {
  std::set<int32_t> seen;
  for (size_t b = 0; b < forest.kv_len.size(); ++b) {
    for (int32_t i = 0; i < forest.kv_len[b] / kPageSize; ++i) seen.insert(forest.pages[forest.page_begin[b] + i]);
  }
  return seen.size();
}

TEST(CaseForest, HoldsAndPlansWhatTheCaseSays) {
  for (const AttentionCase& c : HopperCases()) {
    const CaseForest forest(c, kPageSize);
    double bytes = 0, flops = 0;
    for (const CasePass& pass : c.Passes()) bytes += pass.bytes, flops += pass.flops;
    const auto page_bytes = static_cast<double>(4 * kPageSize * c.kv_heads * c.head_dim);
    EXPECT_EQ(static_cast<double>(DistinctPages(forest)) * page_bytes, bytes) << c.name;
    const PlanStats stats = PlanFor(c, forest)->Stats();
    EXPECT_EQ(static_cast<double>(stats.flops), flops) << c.name;
    EXPECT_GE(static_cast<double>(stats.kv_bytes_read), bytes) << c.name;
  }
}

TEST(CaseForest, HybridBatchesHaveChunksBesideDecodeInOnePlan) {
  int hybrids = 0;
  for (const AttentionCase& c : HopperCases()) {
    if (c.chunks.empty()) continue;
    ++hybrids;
    const CaseForest forest(c, kPageSize);
    EXPECT_EQ(forest.query_count.front(), c.chunks.front());
    EXPECT_TRUE(std::all_of(forest.query_count.begin() + 1, forest.query_count.end(), [](int32_t n) { return n == 1; }));
    EXPECT_EQ(forest.num_queries(), c.chunks.front() + c.nodes.back() - 1);
    const std::unique_ptr<Planner> planner = PlanFor(c, forest);
    EXPECT_FALSE(planner->View().compute_queue.empty()) << c.name;
    EXPECT_FALSE(planner->View().bandwidth_queue.empty()) << c.name;

    // The chunk is bound by products or its share of bytes, decode by bytes: done one after the other they cost their sum.
    const std::vector<CasePass> passes = c.Passes();
    ASSERT_EQ(passes.size(), 2u);
    EXPECT_EQ(passes[0].bytes, passes[1].bytes * (c.nodes.back() - 1)) << c.name;
    EXPECT_GT(passes[1].flops / passes[1].bytes, 100 * passes[0].flops / passes[0].bytes) << c.name;
  }
  EXPECT_EQ(hybrids, 5);
}

TEST(CaseForest, AChunkAndDecodeBelowOnePrefixReadItOnce) {
  const AttentionCase c{"", 8, 2, 64, {1, 3}, {64, 32}, 1, 0, 0, {16}};
  const std::vector<CasePass> passes = c.Passes();
  ASSERT_EQ(passes.size(), 3u);  // the prefix; decode rows' own tokens; the chunk's
  const double token_bytes = 4 * 2 * 64, pair_flops = 4 * 64 * 8;
  EXPECT_EQ(passes[0].bytes, 64 * token_bytes);
  EXPECT_EQ(passes[0].flops, 64 * (16 + 1 + 1) * pair_flops);
  EXPECT_EQ(passes[1].bytes, 2 * 32 * token_bytes);
  EXPECT_EQ(passes[1].flops, 2 * 32 * pair_flops);
  EXPECT_EQ(passes[2].bytes, 32 * token_bytes);
  EXPECT_EQ(passes[2].flops, (17 + 32) * 16 / 2 * pair_flops);  // the first query sees 17 of its node's tokens, the last all 32
}

TEST(CaseForest, RowsToCheckLieOnBothSidesOfAChunksEnd) {
  const CaseForest hybrid({"", 8, 2, 64, {4}, {64}, 1, 0, 0, {16}});
  EXPECT_EQ(hybrid.RowsToCheck(), (std::vector<int32_t>{0, 10, 15, 16, 18}));
  EXPECT_EQ(hybrid.BranchOf(0), 0);
  EXPECT_EQ(hybrid.BranchOf(15), 0);
  EXPECT_EQ(hybrid.BranchOf(16), 1);
  EXPECT_EQ(hybrid.BranchOf(18), 3);
  EXPECT_EQ(CaseForest({"", 8, 2, 64, {4}, {64}, 2}).RowsToCheck(), (std::vector<int32_t>{0, 5, 7}));
  EXPECT_EQ(CaseForest({"", 8, 2, 64, {1}, {64}}).RowsToCheck(), (std::vector<int32_t>{0}));
}

}  // namespace
}  // namespace coppice::attention
