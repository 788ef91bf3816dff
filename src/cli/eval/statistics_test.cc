// Estimates against published values and against what simulation gives.
#include "cli/eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace coppice::cli {
namespace {

TEST(Statistics, WilsonIntervals) {
  // Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29, each with method 3.
  const struct {
    int64_t successes, n;
    double low, high;
  } published[] = {{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0.0, 0.1611}, {1, 29, 0.0061, 0.1718}};
  for (const auto& row : published) {
    const Estimate estimate = Proportion(row.successes, row.n);
    EXPECT_DOUBLE_EQ(estimate.value, static_cast<double>(row.successes) / static_cast<double>(row.n));
    EXPECT_NEAR(estimate.low, row.low, 5e-5);
    EXPECT_NEAR(estimate.high, row.high, 5e-5);
  }
  EXPECT_DOUBLE_EQ(Proportion(20, 20).high, 1);
  EXPECT_EQ(Proportion(0, 0).n, 0);
  EXPECT_DOUBLE_EQ(Proportion(2.5, 10).value, 0.25);  // shares of ten observations
}

TEST(Statistics, PassAtIsTheChanceOfAllDraws) {
  EXPECT_DOUBLE_EQ(PassAt(1, 10, 3), 0.3);
  EXPECT_NEAR(PassAt(2, 4, 2), 1 - 1.0 / 6, 1e-12);  // of six pairs one has no passing sample
  EXPECT_DOUBLE_EQ(PassAt(5, 5, 0), 0);
  EXPECT_DOUBLE_EQ(PassAt(8, 10, 3), 1);
  EXPECT_NEAR(PassAt(100, 1000, 10), 1 - std::exp(std::lgamma(991) + std::lgamma(901) - std::lgamma(891) - std::lgamma(1001)),
              1e-9);
}

TEST(Statistics, IntervalsHoldTheTruthNineteenTimesOfTwenty) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(2.0, 0.5);
  int means = 0, perplexities = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(60), sums;
    std::vector<int64_t> counts;
    for (double& value : values) {
      value = normal(random);
      counts.push_back(20 + static_cast<int64_t>(random() % 80));  // tokens of a text share what is odd about it
      sums.push_back(-value * static_cast<double>(counts.back()));
    }
    const Estimate mean = Mean(values), perplexity = Perplexity(sums, counts);
    means += mean.low <= 2.0 && 2.0 <= mean.high;
    perplexities += perplexity.low <= std::exp(2.0) && std::exp(2.0) <= perplexity.high;
  }
  EXPECT_NEAR(means, 0.95 * kTrials, 0.02 * kTrials);
  EXPECT_NEAR(perplexities, 0.95 * kTrials, 0.02 * kTrials);
}

TEST(Statistics, OfNothingAndOfOne) {
  EXPECT_EQ(Mean({}).n, 0);
  EXPECT_EQ(Perplexity({}, {}).n, 0);
  const double one[] = {3.0};
  EXPECT_DOUBLE_EQ(Mean(one).low, 3.0);
  const double sum[] = {-4.0};
  const int64_t count[] = {2};
  EXPECT_DOUBLE_EQ(Perplexity(sum, count).value, std::exp(2.0));
  EXPECT_EQ(Perplexity(sum, count).n, 2);
}

}  // namespace
}  // namespace coppice::cli
