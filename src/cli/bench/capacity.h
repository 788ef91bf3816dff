// The highest rate of requests at which a system keeps given limits of latency (POD-Attention 5.3; Sarathi-Serve's "capacity").
// Layer: cli.
#pragma once

#include <functional>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::cli {

enum class RateVerdict {
  kWithin,     // the limits hold
  kBeyond,     // they do not
  kSaturated,  // they hold, but requests end far more slowly than they come: there are too few of them to show the queue
};

struct Capacity {
  double rate = 0;            // the highest that was within; 0: none was
  double beyond = 0;          // the lowest above it that was not; 0: none was found, and `rate` is a lower bound
  std::vector<double> rates;  // in the order in which they were evaluated
};

// Doubles or halves `start` until limits begin to be missed, then halves the distance, on a scale of ratios, until `beyond` is at
// most 1 + `precision` times `rate`. At most 20 doublings or 10 halvings. Errors of `evaluate` end the search.
Result<Capacity> FindCapacity(double start, double precision, const std::function<Result<RateVerdict>(double rate)>& evaluate);

}  // namespace coppice::cli
