#include "core/interleaved_timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace coppice {
namespace {

using testing::ElementsAre;

TEST(EstimateMedian, BoundsComeFromRanks) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1.0);
  const Estimate estimate = EstimateMedian(values);  // of ranks 50 -+ 0.98 * 10
  EXPECT_EQ(estimate.median, 51);
  EXPECT_EQ(estimate.low, 40);
  EXPECT_EQ(estimate.high, 61);
  const Estimate alone = EstimateMedian({7.0});
  EXPECT_EQ(alone.low, 7);
  EXPECT_EQ(alone.high, 7);
}

TEST(TimeInTurns, EveryOneBeginsAndEachRunsAfterEachOther) {
  std::vector<size_t> order;
  const auto timed = TimeInTurns(3, {.repeats = 6}, [&](size_t i) -> Result<double> {
    order.push_back(i);
    return 1.0 + static_cast<double>(i);
  });
  ASSERT_TRUE(timed.ok());
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 1, 2, 0, 2, 0, 1, 2, 1, 0, 1, 0, 2, 0, 2, 1));
  EXPECT_THAT((*timed)[2].times, ElementsAre(3, 3, 3, 3, 3, 3));
  EXPECT_EQ((*timed)[2].over_first.median, 3);
}

TEST(TimeInTurns, MoreRoundsUntilTheRatioIsKnown) {
  int turns = 0;
  const auto noisy_at_first = [&](size_t i) -> Result<double> { return i == 0 || ++turns > 9 ? 1.0 : 1.0 + 0.1 * turns; };
  const auto once = TimeInTurns(2, {.repeats = 9}, noisy_at_first);
  ASSERT_TRUE(once.ok());
  EXPECT_EQ((*once)[1].times.size(), 9);
  turns = 0;
  const auto known = TimeInTurns(2, {.repeats = 9, .precision = 0.01, .seconds = 60}, noisy_at_first);
  ASSERT_TRUE(known.ok());
  EXPECT_GT((*known)[1].times.size(), 18);
  EXPECT_LE((*known)[1].over_first.width(), 0.01);
  EXPECT_EQ((*known)[1].over_first.median, 1);
}

TEST(TimeInTurns, AnErrorEndsIt) {
  const auto timed = TimeInTurns(2, {}, [](size_t i) -> Result<double> {
    if (i == 1) return InvalidArgument("no clock");
    return 1.0;
  });
  EXPECT_EQ(timed.status().message(), "no clock");
}

}  // namespace
}  // namespace coppice
