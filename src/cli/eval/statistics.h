// Estimates with their uncertainty: what an evaluation reports beside each number. Pure functions.
// Layer: cli.
#pragma once

#include <cstdint>
#include <span>

namespace coppice::cli {

// An estimate and the interval that holds the true value in 95 of 100 cases, of n observations.
struct Estimate {
  double value = 0, low = 0, high = 0;
  int64_t n = 0;
};

// A share of successes: Wilson's score interval (1927), which holds at 0 and at n too. Observations may be shares in [0, 1], whose
// sum `successes` is then: they vary no more than successes do, so the interval is wide enough. n = 0: 0 within [0, 1].
Estimate Proportion(double successes, int64_t n);
// A mean of independent values, by the normal approximation with the sample's standard deviation; of one value no interval.
Estimate Mean(std::span<const double> values);
// exp(-mean log-probability) over the tokens of texts that are drawn independently: `sums` and `counts` are of each text. Tokens of
// a text are not independent, so the error of the ratio is taken over texts (delta method).
Estimate Perplexity(std::span<const double> sums, std::span<const int64_t> counts);

// The chance that at least one of k samples passes, when c of n did (Chen et al. 2021, equation 1). REQUIRES: 0 <= c <= n, 1 <= k
// <= n.
double PassAt(int64_t k, int64_t n, int64_t c);

}  // namespace coppice::cli
