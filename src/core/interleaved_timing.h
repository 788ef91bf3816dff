// Contestants timed in turns, as the benchmarks compare plans and kernels: what drifts (clocks, temperature, neighbours) meets all
// of them alike and falls out of each round's ratio. Layer: core.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

// The median of some values, and the bounds between which that of endless many lies in 95 of 100 cases.
struct Estimate {
  double median = 1, low = 1, high = 1;
  double width() const { return high / low - 1; }
};
// Bounds from ranks, whatever the distribution. `values`: one at least.
Estimate EstimateMedian(std::vector<double> values);

// Rounds, in each of which every contestant runs once: at least `repeats`, then more until every ratio is known to within
// `precision` (high / low - 1) or `seconds` have passed. The same rule for all, whatever the times are.
struct RoundsOptions {
  int repeats = 9;
  double precision = 0, seconds = 0;
};

struct InterleavedTimes {
  std::vector<double> times;  // by round, in the unit of `take_turn`
  Estimate over_first;        // this contestant's time / the first one's, of each round

  double Median() const { return EstimateMedian(times).median; }
};

// Calls take_turn(contestant) for contestants 0, 1, .. in turns, and passes its first error on.
Result<std::vector<InterleavedTimes>> TimeInTurns(size_t contestants, const RoundsOptions& options,
                                                  const std::function<Result<double>(size_t)>& take_turn);

}  // namespace coppice
