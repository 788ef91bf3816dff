// Attention against the fp64 oracle: random forests with hand-made plans, so that every legal shape runs and not only those that
// the planner likes; the planner's own plans over edited forests; the named edge cases; deterministic mode bit by bit; state
// merges; writes into the pool. The bodies (tests/support/attention_bodies.h) run once for every instruction set of the CPU.
//   COPPICE_ATTENTION_CASES=n   random forests on the best instruction set (default 500; the ctest label `long` runs 10,000)
//   COPPICE_ATTENTION_SEED=s    the first seed, to repeat a failure
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention/cpu/kernel_table.h"
#include "core/thread_pool.h"
#include "tests/support/attention_bodies.h"

namespace coppice::attention {
namespace {

using cpu::Isa;
using testing::AttentionCase;
using testing::CaseOptions;
using testing::HandPlan;
using testing::MakeCpuTestDevice;

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!cpu::HasIsa(GetParam())) GTEST_SKIP() << "this machine lacks " << cpu::Name(GetParam());
    device_ = MakeCpuTestDevice(4, GetParam());
  }

  uint64_t NumCases() const {
    const uint64_t cases = testing::FromEnvironment("COPPICE_ATTENTION_CASES", 500);
    return GetParam() == cpu::DetectIsa() ? cases : std::max<uint64_t>(1, cases / 10);
  }

  std::unique_ptr<testing::TestDevice> device_;
};

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest,
                         ::testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAvx512Bf16,
                                           Isa::kAmxBf16),
                         [](const auto& info) {
                           std::string name(cpu::Name(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(AttentionTest, RandomForestsAgreeWithOracle) {
  testing::RandomForestsAgreeWithOracle(*device_, testing::FromEnvironment("COPPICE_ATTENTION_SEED", 0), NumCases(),
                                        testing::RandomCase);
}

TEST_P(AttentionTest, EdgeCases) { testing::EdgeCasesAgreeWithOracle(*device_); }

TEST_P(AttentionTest, LseIsNaturalLogarithm) { testing::LseIsNaturalLogarithm(*device_, {DType::kF32, DType::kBF16}); }

TEST_P(AttentionTest, RowThatSeesNothing) { testing::RowThatSeesNothing(*device_); }

TEST_P(AttentionTest, DeterministicBits) {
  testing::DeterministicBitsDependOnTheRequestAlone([](int threads) { return MakeCpuTestDevice(threads, GetParam()); },
                                                    {{DType::kBF16, 32}, {DType::kF32, 32}});
}

TEST_P(AttentionTest, DeterministicBitsInRandomForests) {
  testing::DeterministicBitsAreThoseOfTheRequestAlone(*device_, 0, GetParam() == cpu::DetectIsa() ? 4 : 1);
}

// Dense tiles of one instruction set and stream tiles of another, as a probe may choose them.
TEST(MixedTilesTest, RandomForestsAgreeWithOracle) {
  if (!cpu::HasIsa(Isa::kAvx512Bf16)) GTEST_SKIP() << "this machine has one kind of bf16 tiles";
  for (const cpu::TileForms& forms : {cpu::TileForms(Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx512Bf16),
                                      cpu::TileForms(Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2)}) {
    const auto device = MakeCpuTestDevice(4, forms);
    testing::RandomForestsAgreeWithOracle(*device, testing::FromEnvironment("COPPICE_ATTENTION_SEED", 0), 50, testing::RandomCase);
    testing::EdgeCasesAgreeWithOracle(*device);
  }
}

// Sharing, cutting and folding cost no accuracy: against fp64, a request in a shared plan errs by no more than in a single pass
// over its whole path. A floor of a few roundings of fp32 keeps near-exact results comparable.
TEST_P(AttentionTest, SharingAddsNoError) {
  constexpr double kRatio = 1.1, kFloor = 0x1p-23;
  const auto rms_error = [](const testing::AttentionOutput& output, const ReferenceResult& reference) {
    double sum = 0;
    for (size_t i = 0; i < reference.out.size(); ++i) {
      sum += (output.out[i] - reference.out[i]) * (output.out[i] - reference.out[i]);
    }
    return std::sqrt(sum / static_cast<double>(reference.out.size()));
  };
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      CaseOptions options;
      options.seed = seed;
      options.spec = {.num_qo_heads = seed % 3 == 0 ? 2 : 8, .num_kv_heads = 2, .head_dim = seed % 2 == 0 ? 64 : 128};
      options.spec.q_dtype = options.spec.kv_dtype = dtype;
      options.forest = {.max_branches = 12, .max_segment = 160, .max_query_count = 1, .own_root = 0, .idle_branch = 0};
      options.q_magnitude = seed % 3 == 2 ? 4.0f : 1.0f;
      SCOPED_TRACE(options.ToString());
      AttentionCase test(*device_, options);
      const ReferenceResult reference = test.Reference();
      const auto error_of = [&](const testing::HandPlanOptions& plan_options) {
        const HandPlan plan(test.spec(), test.forest().View(), plan_options, seed);
        const auto executor = *device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
        testing::RunAndCompare(test, *executor, plan);
        return rms_error(test.Read(), reference);
      };
      const double alone = error_of({.share = false});
      EXPECT_LE(error_of({.share = true}), kRatio * alone + kFloor);
      EXPECT_LE(error_of({.share = true, .cut_multiple = 64}), kRatio * alone + kFloor) << "cut";
    }
  }
}

TEST_P(AttentionTest, PagesOutsideThePoolAreRefused) {
  AttentionCase test(*device_, testing::SmallCase(2, 64));
  test.forest().AddRoot(31);
  test.forest().AddRoot(16);
  test.forest().SetQueries({1, 1});
  test.Refresh();
  const auto plan = testing::MakePlan(*device_, test);
  const auto bound = test.Bind();
  PrefixForestView view = test.forest().View();
  std::vector<int32_t> pages(view.page_indices.begin(), view.page_indices.end()), lengths = {31, 16};
  view.page_indices = pages;
  view.branch_kv_len = lengths;
  const auto run = [&] {
    EXPECT_TRUE(plan->Update(view).ok());
    return plan->Run(**bound, test.Args());
  };
  EXPECT_TRUE(run().ok());
  // A page that is not in use yet may be anything; once the branch has grown into it, it is looked at.
  const int32_t next = view.branch_page_begin[0] + 2, num_pages = test.kv().num_pages;
  pages[next] = num_pages;
  lengths[0] = 32;
  EXPECT_TRUE(run().ok());
  lengths[0] = 33;
  const Status status = run();
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("entry 2 of the page row of branch 0 is " + std::to_string(num_pages)), std::string::npos)
      << status.message();
  pages[next] = num_pages - 1;
  EXPECT_TRUE(run().ok());
  // With a new version each row is looked at again.
  pages[view.branch_page_begin[1]] = -1;
  view.version += 1;
  EXPECT_EQ(run().code(), StatusCode::kOutOfRange);
}

// ---------------------------------------------------------------------------------------------------------------- prompt phase

// RelayAttention algorithm 1: new prompts over a cached prefix read that prefix once for all of them.
TEST_P(AttentionTest, PromptsOverCachedPrefixReadItOnce) {
  if (GetParam() != cpu::DetectIsa()) GTEST_SKIP() << "once is enough: the oracle takes seconds";
  constexpr int32_t kPrefix = 2048, kPrompts = 32, kTokens = 64;
  CaseOptions options;
  options.spec = {.num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  options.forest = {
      .page_size = 16, .max_branches = kPrompts, .max_kv_len = kPrefix + kTokens, .max_query_count = kTokens, .start_empty = true};
  AttentionCase test(*device_, options);
  test.forest().AddRoot(kPrefix + kTokens);
  for (int32_t b = 1; b < kPrompts; ++b) test.forest().Fork(0, kPrefix, kTokens);
  test.forest().SetQueries(std::vector<int32_t>(kPrompts, kTokens));
  test.Refresh();
  const int64_t once = kPrefix + kPrompts * kTokens, unshared = int64_t{kPrompts} * (kPrefix + kTokens);

  const HandPlan plan(test.spec(), test.forest().View(), {}, 1);
  int64_t tokens_read = 0;
  for (const WorkItem& item : plan.View().items) {
    tokens_read += std::min(item.kv_end, test.forest().View().branch_kv_len[item.page_row]) - item.kv_begin;
  }
  EXPECT_EQ(tokens_read, once);
  auto executor = device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
  ASSERT_TRUE(executor.ok());
  testing::RunAndCompare(test, **executor, plan);

  // The planner may read the prefix again for other blocks of rows, to keep all workers busy, but not for each prompt.
  PlanCapacity capacity = test.forest().Capacity();
  capacity.max_branches = capacity.max_queries;  // room for partial states of all rows
  const auto planned = *AttentionPlan::Create(device_->backend(), test.spec(), capacity, {.force_sharing = true});
  ASSERT_TRUE(planned->Update(test.forest().View()).ok());
  const PlanStats stats = planned->Stats();
  constexpr int64_t kTokenBytes = 2 * 64 * 2;
  EXPECT_EQ(stats.shared_nodes, 1);
  const auto store = *AttentionPlan::Create(device_->backend(), test.spec(), capacity, {.policy = SharePolicy::kStore});
  ASSERT_TRUE(store->Update(test.forest().View()).ok());
  EXPECT_EQ(stats.kv_bytes_read_unshared, store->Stats().kv_bytes_read);
  EXPECT_GE(stats.kv_bytes_read_unshared, unshared * kTokenBytes);  // each row tile of a prompt reads the prefix
  EXPECT_LT(stats.kv_bytes_read, unshared * kTokenBytes / 2);
}

// --------------------------------------------------------------------------------------------------------------- states and pool

TEST(StateTest, MergeIsTheSoftmaxOfTheUnion) { testing::MergedStatesAreTheSoftmaxOfTheUnion(*MakeCpuTestDevice(2)); }

TEST(PoolTest, AppendedTokensLandInTheirSlotsInEveryLayout) { testing::AppendedTokensLandInTheirSlots(*MakeCpuTestDevice(2), 5); }

TEST(PoolTest, CopiedPagesAreEqual) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) testing::CopiedPagesAreEqual(*MakeCpuTestDevice(2), dtype);
}

TEST(PoolTest, MovedSlotsKeepTheirOrder) { testing::MovedSlotsKeepTheirOrder(*MakeCpuTestDevice(2)); }

TEST(ContextTest, BadArgumentsAreNamed) {
  testing::BadArgumentsAreNamed(*MakeCpuTestDevice(2));
  EXPECT_EQ(Context::CreateCpu(nullptr).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice::attention
