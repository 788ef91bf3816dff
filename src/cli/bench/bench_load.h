// `coppice bench throughput` (all requests at once) and `coppice bench serve` (Poisson arrivals): what users of the engine see
// under a workload, in the four sharing modes, interleaved. docs/benchmarks.md has workloads and metrics. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchThroughputCommand(CLI::App& bench);
Command AddBenchServeCommand(CLI::App& bench);

}  // namespace coppice::cli
