// How long a plan takes where it runs: on this CPU, or on a GPU of this machine. For `coppice inspect plan`. Layer: cli.
#pragma once

#include <cstddef>

#include "attention/plan_io.h"
#include "attention_tools/bench_device.h"
#include "cli/bench/tree_problem.h"
#include "coppice/core/status.h"

namespace coppice::cli {

struct PlanTiming {
  double median_ns = 0, fastest_ns = 0, slowest_ns = 0;
  size_t runs = 0;
};

// Runs until half a second has passed, after one run that warms caches and page tables up.
Result<PlanTiming> TimePlan(RunnablePlan& plan);
// Replays of a graph, the device's caches flushed before each; keys, values and queries are pseudo-random.
Result<PlanTiming> TimePlan(attention::BenchDevice& device, const attention::PlanDump& problem);

}  // namespace coppice::cli
