// A trace over several replicas: the requests of each, its computation and reads, how long requests take. One thread, the same
// result in every run. Layer: simulate.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "simulate/replica.h"
#include "simulate/router.h"
#include "simulate/trace.h"

namespace coppice::simulate {

struct SimulationOptions {
  int32_t replicas = 1;
  ServerOptions server;
  RouterOptions router;
};

struct Latencies {
  double mean = 0, p50 = 0, p99 = 0;
};

struct SimulationResult {
  std::vector<Outcome> outcomes;  // by request
  std::vector<ReplicaTotals> replicas;
  int64_t refused = 0;  // requests that no replica's cache holds
  double seconds = 0;   // until the last answer
  double hit_rate = 0;  // of prompt tokens
  // Work of the replica with the most over that of all in the mean: prompt tokens that were computed and tokens that were
  // generated, at the prices that routers reckon with. And the same of the time in which steps ran, which is near 1 where replicas
  // rarely rest.
  double imbalance = 1, busy_imbalance = 1;
  Latencies first_token, request;

  ReplicaTotals Total() const;
};

// `go_on` is asked now and then; false ends the simulation with what it has so far. REQUIRES: replicas >= 1, requests in order of
// arrival, server.kv_tokens > 0.
SimulationResult Simulate(const Trace& trace, const Costs& costs, const SimulationOptions& options,
                          const std::function<bool(int64_t done)>& go_on = {});

}  // namespace coppice::simulate
