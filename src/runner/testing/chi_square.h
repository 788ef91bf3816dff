// Pearson's chi-square test of counted outcomes against probabilities. Layer: runner, tests only.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>

namespace coppice {

// How many standard deviations the statistic of `counts` lies above its mean if each outcome has the probability given: beyond 5
// the counts do not come from it. Outcomes expected less than 5 times are taken together. An impossible outcome that occurred:
// infinity.
inline double ChiSquareDeviations(std::span<const int64_t> counts, std::span<const double> probabilities) {
  const double total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double statistic = 0, rare_expected = 0, rare_counted = 0;
  int bins = 0;
  const auto add = [&](double counted, double expected) {
    statistic += (counted - expected) * (counted - expected) / expected;
    ++bins;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * total, counted = static_cast<double>(counts[i]);
    if (expected == 0 && counted > 0) return INFINITY;
    if (expected >= 5) {
      add(counted, expected);
    } else {
      rare_expected += expected;
      rare_counted += counted;
    }
  }
  if (rare_expected >= 5) add(rare_counted, rare_expected);
  const double freedom = bins - 1;
  return freedom > 0 ? (statistic - freedom) / std::sqrt(2 * freedom) : 0;
}

}  // namespace coppice
