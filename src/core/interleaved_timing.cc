#include "core/interleaved_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace coppice {

Estimate EstimateMedian(std::vector<double> values) {
  std::ranges::sort(values);
  const double n = static_cast<double>(values.size()), spread = 0.98 * std::sqrt(n);  // 1.96 standard deviations of a rank
  const auto at = [&](double rank) { return values[static_cast<size_t>(std::clamp(rank, 1.0, n)) - 1]; };
  return {.median = values[values.size() / 2], .low = at(std::round(n / 2 - spread)), .high = at(std::round(n / 2 + 1 + spread))};
}

Result<std::vector<InterleavedTimes>> TimeInTurns(size_t contestants, const RoundsOptions& options,
                                                  const std::function<Result<double>(size_t)>& take_turn) {
  std::vector<InterleavedTimes> result(contestants);
  const auto compare = [&] {
    for (InterleavedTimes& contestant : result) {
      std::vector<double> ratios(contestant.times.size());
      std::ranges::transform(contestant.times, result.front().times, ratios.begin(), std::divides());
      contestant.over_first = EstimateMedian(std::move(ratios));
    }
    return std::ranges::all_of(result, [&](const InterleavedTimes& c) { return c.over_first.width() <= options.precision; });
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto time_is_up = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >= options.seconds;
  };
  // Another one begins each round, and every other time the order is reversed: each one runs after each of the others.
  for (size_t round = 0, next_look = options.repeats; round < next_look;) {
    for (size_t turn = 0; turn < contestants; ++turn) {
      const size_t place = (turn + round) % contestants;
      const size_t contestant = round / contestants % 2 == 0 ? place : contestants - 1 - place;
      COPPICE_ASSIGN_OR_RETURN(result[contestant].times.emplace_back(), take_turn(contestant));
    }
    if (++round == next_look && !compare() && !time_is_up()) next_look += (next_look + 7) / 8;
  }
  return result;
}

}  // namespace coppice
