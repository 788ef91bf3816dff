// Is work bounded, and does it grow in proportion to the input? CPU time of this thread, so that a busy machine does not decide;
// growth at two sizes, so that a slow one does not either. Layer: tests.
#pragma once

#include <ctime>

#include <algorithm>
#include <limits>
#include <utility>

namespace coppice::testing {

constexpr int kGrownBy = 8;
// Proportional work grows by 8, with caches that no longer hold it and a logarithm by less than 24; quadratic work grows by 64.
constexpr double kMaxProportionalGrowth = 24;

// How many times as long as a build for users a build with sanitizers or without optimisation may take.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr double kBuildSlowdown = 20;
#else
constexpr double kBuildSlowdown = 1;
#endif

inline double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// CPU time of work(make_input(kGrownBy * size)) over that of work(make_input(size)); the inputs' own cost does not count. `size`
// large enough that fixed costs vanish.
template <class MakeInput, class Work>
double WorkGrowth(int size, MakeInput make_input, Work work) {
  const auto seconds = [&](int n, int runs) {
    const auto input = make_input(n);
    double least = std::numeric_limits<double>::infinity();
    for (int run = 0; run < runs; ++run) {
      const double start = ThreadCpuSeconds();
      work(input);
      least = std::min(least, ThreadCpuSeconds() - start);
    }
    return least;
  };
  const double small = seconds(size, 5);
  return seconds(kGrownBy * size, 2) / small;
}

}  // namespace coppice::testing
