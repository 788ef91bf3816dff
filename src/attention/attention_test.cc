// Attention against the fp64 oracle, on every device that is built: one body for all. Plans are made by hand here, so that every
// legal shape is run, not only those that the planner likes.
//   COPPICE_ATTENTION_CASES=n   random forests to run (default 500; the ctest label `long` runs 10,000)
//   COPPICE_ATTENTION_SEED=s    the first seed, to repeat a failure
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/attention_case.h"
#include "tests/support/hand_plan.h"

namespace coppice::attention {
namespace {

using testing::AttentionCase;
using testing::CaseOptions;
using testing::HandPlan;
using testing::HandPlanOptions;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

HandPlanOptions RandomPlanOptions(uint64_t seed, bool deterministic) {
  std::mt19937_64 rng(seed);
  HandPlanOptions options;
  options.share = rng() % 4 != 0;
  options.absorb = rng() % 2 ? 0.3 : 0.0;
  options.cut_multiple = rng() % 2 ? 64 : 0;
  options.stream_only = rng() % 8 == 0;
  options.dense_min_rows = 1 + rng() % 16;
  options.lookahead = rng() % 2 ? 100 : 0;
  if (deterministic) options.share = false, options.cut_multiple = 0;
  return options;
}

class AttentionTest : public ::testing::Test {
 protected:
  // Runs `plan` on the case's present state and compares it with the oracle.
  static void RunAndCompare(AttentionCase& test, PlanExecutor& executor, const HandPlan& plan, bool with_lse = true) {
    const auto bound = test.Bind();
    ASSERT_TRUE(bound.ok()) << bound.status().ToString();
    ASSERT_TRUE(executor.Upload(plan.View(), test.forest().View(), nullptr).ok());
    const Status status = executor.Run(**bound, test.Args(with_lse), nullptr);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(test.Compare(test.Read(), plan.max_contributions_of_a_set(), with_lse), "");
  }

  std::unique_ptr<testing::TestDevice> device_ = testing::MakeCpuTestDevice();
};

TEST_F(AttentionTest, RandomForestsAgreeWithOracle) {
  const uint64_t first = FromEnvironment("COPPICE_ATTENTION_SEED", 0), count = FromEnvironment("COPPICE_ATTENTION_CASES", 500);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const CaseOptions options = testing::RandomCase(seed);
    SCOPED_TRACE(options.ToString());
    AttentionCase test(*device_, options);
    for (int edit = 0; edit < 2; ++edit) {
      const HandPlan plan(test.spec(), test.forest().View(), RandomPlanOptions(seed + edit, test.spec().deterministic), seed);
      auto executor = device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
      ASSERT_TRUE(executor.ok()) << executor.status().ToString();
      for (int step = 0; step < 2; ++step) {  // the same plan serves growing lengths
        RunAndCompare(test, **executor, plan, step == 0);
        if (HasFatalFailure()) return;
        if (!test.forest().Grow()) break;
        test.Refresh();
      }
      test.forest().Edit();
      test.Refresh();
    }
  }
}

}  // namespace
}  // namespace coppice::attention
