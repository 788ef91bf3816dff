// A workload as users of a server or of an engine would have seen it, and how it is written down.
// Layer: cli.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "coppice/core/types.h"
#include "coppice/engine/engine.h"

namespace coppice::cli {

// Quantiles 0, 1, .. 100 percent of a set of measurements, linear between neighbours; empty for no measurement.
std::vector<double> Percentiles(std::vector<double> values);

// An engine's own figures.
struct EngineFigures {
  EngineMetrics metrics;
  DType dtype = DType::kBF16;  // of KV: what the engine chose, where its options leave it open
};

// The own figures of a server that was asked over HTTP, and the time of asking.
struct ServerFigures {
  int64_t refused = 0;                       // requests that it had no room for (429, 503)
  int64_t cached_tokens = 0;                 // of prompts, where the usage says it
  bool reports_cached = false;               // whether it does
  double client_cpu_seconds = 0;             // of this process, during the run
  std::optional<double> server_cpu_seconds;  // of the server's, where its /metrics say it
  int64_t short_requests = 0;                // that ended before all tokens that were asked for
};

struct LoadResult {
  int64_t requests = 0, samples = 0, prompt_tokens = 0, output_tokens = 0;
  double seconds = 0;  // from the first arrival to the last token
  // Seconds. TTFT: from a request's arrival to its first token. TBT: between the tokens of one sample. Latency: from arrival to the
  // last token of all samples; normalized, divided by the tokens of a sample (RelayAttention, figure 8). Arrival is when a request
  // was due, even if the engine was busy with a step then.
  std::vector<double> ttft, tbt, latency, normalized_latency;
  int64_t stalled_200ms = 0, stalled_500ms = 0;  // requests with a TBT above (POD tables 4-6)
  // One of the two.
  std::optional<EngineFigures> engine;
  std::optional<ServerFigures> server;
};

// Counts, rates, percentiles, shares and bytes; docs/benchmarks.md lists the keys.
nlohmann::ordered_json ToJson(const LoadResult& result);

}  // namespace coppice::cli
