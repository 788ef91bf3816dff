// Puts the requests of a workload to an engine at the moments at which they arrive and measures what their users would see.
// Layer: cli.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "cli/bench/workload.h"
#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice::cli {

// Quantiles 0, 1, .. 100 percent of a set of measurements, linear between neighbours; empty for no measurement.
std::vector<double> Percentiles(std::vector<double> values);

struct LoadResult {
  int64_t requests = 0, samples = 0, prompt_tokens = 0, output_tokens = 0;
  double seconds = 0;  // from the first arrival to the last token
  // Seconds. TTFT: from a request's arrival to its first token. TBT: between the tokens of one sample. Latency: from arrival to the
  // last token of all samples. Arrival is when a request was due, even if the engine was busy with a step then.
  std::vector<double> ttft, tbt, latency;
  int64_t stalled_200ms = 0, stalled_500ms = 0;  // requests with a TBT above (POD tables 4-6)
  EngineMetrics metrics;
};

// `arrivals`: seconds from the start, ascending, one per request. The engine is fresh. Every sample gets all its tokens: ends of
// text are ignored. An error of any request ends the run.
Result<LoadResult> RunLoad(Engine& engine, std::span<const WorkloadRequest> requests, std::span<const double> arrivals);

// Counts, rates, percentiles, shares and bytes; docs/benchmarks.md lists the keys.
nlohmann::ordered_json ToJson(const LoadResult& result);

}  // namespace coppice::cli
