#include "cli/bench/tree_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/thread_pool.h"

namespace coppice::cli {
namespace {

using attention::kLive;
using attention::kNoParent;
using attention::PlanDump;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseTree, LevelsFromTheRoot) {
  const Result<std::vector<TreeLevel>> levels = ParseTree("2048,256x4,64x8");
  ASSERT_TRUE(levels.ok()) << levels.status().ToString();
  ASSERT_EQ(levels->size(), 3u);
  EXPECT_EQ((*levels)[0].tokens, 2048);
  EXPECT_EQ((*levels)[0].fan_out, 1);
  EXPECT_EQ((*levels)[2].tokens, 64);
  EXPECT_EQ((*levels)[2].fan_out, 8);
}

TEST(ParseTree, ErrorsNameTheLevel) {
  for (const char* bad : {"", "12,", "x3", "3x", "0", "1x-2", "5y6", "1 x2"}) EXPECT_FALSE(ParseTree(bad).ok()) << bad;
  EXPECT_THAT(ParseTree("64,a").status().message(), HasSubstr("\"a\" is no level"));
  EXPECT_THAT(ParseTree("1x60000,1x60000").status().message(), HasSubstr("at most 65536"));
  std::string deep = "1";
  for (int i = 0; i < 2000; ++i) deep += ",1";
  EXPECT_THAT(ParseTree(deep).status().message(), HasSubstr("at most 1024"));
  EXPECT_THAT(ParseTree("1x60000" + deep.substr(1, 40)).status().message(), HasSubstr("nodes or more"));
}

// Two nodes of 6 tokens below a root of 4, two requests with 3 own tokens below each; pages of 4.
PlanDump SmallTree(SharingMode sharing) {
  PlanDump problem;
  EXPECT_TRUE(MakeTree({{4, 1}, {6, 2}, {3, 2}}, /*page_size=*/4, /*queries=*/2, sharing, problem).ok());
  return problem;
}

TEST(MakeTree, SharedPagesAreThoseThatEndInASharedNode) {
  const PlanDump problem = SmallTree(SharingMode::kTree);
  EXPECT_THAT(problem.node_parent, ElementsAre(kNoParent, 0, 1, 1, 0, 4, 4));
  EXPECT_THAT(problem.node_begin, ElementsAre(0, 4, 10, 10, 4, 10, 10));
  EXPECT_THAT(problem.node_end, ElementsAre(4, 10, kLive, kLive, 10, kLive, kLive));
  EXPECT_THAT(problem.branch_node, ElementsAre(2, 3, 5, 6));
  EXPECT_THAT(problem.branch_kv_len, ElementsAre(13, 13, 13, 13));
  EXPECT_THAT(problem.branch_query_begin, ElementsAre(0, 2, 4, 6));
  const auto page = [&](int branch, int slot) { return problem.page_indices[problem.branch_page_begin[branch] + slot]; };
  for (int b = 0; b < 4; ++b) EXPECT_EQ(page(b, 0), page(0, 0));  // the root's page
  EXPECT_EQ(page(0, 1), page(1, 1));                              // tokens 4 to 7: of the first inner node
  EXPECT_EQ(page(2, 1), page(3, 1));
  EXPECT_NE(page(0, 1), page(2, 1));
  EXPECT_NE(page(0, 2), page(1, 2));  // tokens 8 to 11: copied on write
}

TEST(MakeTree, NoneHasNeitherSharedNodesNorSharedPages) {
  const PlanDump problem = SmallTree(SharingMode::kNone);
  EXPECT_THAT(problem.node_parent, ElementsAre(kNoParent, kNoParent, kNoParent, kNoParent));
  EXPECT_THAT(problem.node_begin, ElementsAre(0, 0, 0, 0));
  std::vector<int32_t> pages = problem.page_indices;
  std::ranges::sort(pages);
  EXPECT_EQ(std::ranges::adjacent_find(pages), pages.end());
}

TEST(MakeTree, MoreQueriesThanOwnTokens) {
  PlanDump problem;
  EXPECT_THAT(MakeTree({{4, 2}}, 16, 5, SharingMode::kTree, problem).message(), HasSubstr("4 own tokens and 5 queries"));
}

TEST(MakeTree, MoreTokensThanAPlanHasNumbersFor) {
  PlanDump problem;
  EXPECT_THAT(MakeTree({{INT32_MAX, 1}, {INT32_MAX, 1}}, 16, 1, SharingMode::kTree, problem).message(),
              HasSubstr("4294967294 tokens"));
  EXPECT_THAT(MakeTree({{100000000, 60000}}, 16, 1, SharingMode::kTree, problem).message(), HasSubstr("page indices"));
}

// A dump of an engine at work: a free slot comes last, and unused entries of a page row are garbage.
TEST(RunnablePlan, FreeSlotsAndUnusedPagesOfADump) {
  PlanDump problem = SmallTree(SharingMode::kTree);
  problem.spec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .q_dtype = DType::kF32, .kv_dtype = DType::kF32};
  const int32_t queries = problem.num_queries();
  const int64_t pages = problem.num_pages();
  for (int32_t b = 0; b < problem.num_branches(); ++b) {
    const int32_t end = problem.branch_page_begin[b] + problem.branch_page_capacity[b];
    problem.page_indices[end - 1] = b == 0 ? INT32_MAX : -7;
  }
  problem.AddBranch(attention::kFreeSlot, 0, 0, {});
  problem.branch_query_begin.back() = -5;
  problem.capacity = {.max_branches = 8, .max_queries = 64, .max_page_slots = 1024, .page_size = problem.page_size};
  EXPECT_EQ(problem.num_queries(), queries);
  EXPECT_EQ(problem.num_pages(), pages);
  ThreadPool threads(1);
  const auto context = attention::Context::CreateCpu(&threads);
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  const Result<std::unique_ptr<RunnablePlan>> runnable = RunnablePlan::Create(**context, problem);
  ASSERT_TRUE(runnable.ok()) << runnable.status().ToString();
  EXPECT_TRUE((*runnable)->Run().ok());

  problem.page_indices[problem.branch_page_begin[1]] = INT32_MAX;  // one that is read
  EXPECT_THAT(RunnablePlan::Create(**context, problem).status().message(), HasSubstr("takes 2147483647 pages"));
}

TEST(RunnablePlan, RunsAndCountsWhatTheTreeSays) {
  PlanDump problem = SmallTree(SharingMode::kTree);
  problem.spec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .q_dtype = DType::kF32, .kv_dtype = DType::kF32};
  problem.options.force_sharing = true;
  ThreadPool threads(1);
  const auto context = attention::Context::CreateCpu(&threads);
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  const Result<std::unique_ptr<RunnablePlan>> runnable = RunnablePlan::Create(**context, problem);
  ASSERT_TRUE(runnable.ok()) << runnable.status().ToString();
  const Status run = (*runnable)->Run();
  EXPECT_TRUE(run.ok()) << run.ToString();
  EXPECT_EQ((*runnable)->plan().Stats().kv_tokens_read, 4 + 2 * 6 + 4 * 3);
  EXPECT_EQ((*runnable)->plan().Stats().kv_tokens_read_unshared, 4 * 13);
}

}  // namespace
}  // namespace coppice::cli
