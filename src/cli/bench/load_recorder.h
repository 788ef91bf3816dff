// Notes when the requests of a workload arrive, when their tokens come and when they end. Knows neither engines nor sockets.
// Layer: cli.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "cli/bench/load_result.h"
#include "cli/bench/workload.h"

namespace coppice::cli {

// When requests come, and which ones.
struct LoadSchedule {
  std::vector<double> arrivals;  // seconds from the start, ascending, one per request
  int32_t concurrency = 0;       // so many requests are under way at most; those that are held back arrive when one ends. 0: any
  int32_t run =
      0;  // of a server, from 0 on: prompts of different runs have different tokens, so that none is cached from another run
};

// Thread-safe. Times are seconds from the start.
class LoadRecorder {
 public:
  LoadRecorder(std::span<const WorkloadRequest> requests, std::span<const double> arrivals);

  // It was held back until now.
  void Arrive(size_t request, double now);
  // `count` tokens of a sample came together.
  void AddTokens(size_t request, int32_t sample, int64_t count, double now);
  // `count` tokens came with others, as was known only at the end.
  void AddUntimed(size_t request, int64_t count);
  void End(size_t request, double now);
  // It will have no answer.
  void Refuse(size_t request);

  size_t done() const;
  int64_t tokens(size_t request) const;
  // Once, when all requests have ended. The counts are of those that were answered.
  LoadResult Take();

 private:
  static constexpr double kNever = -1;
  struct Trace {
    double arrival = 0, longest_gap = 0;
    bool begun = false, refused = false;
    int64_t tokens = 0;              // of all samples
    std::vector<double> last_token;  // by sample
  };

  const std::span<const WorkloadRequest> requests_;
  mutable std::mutex mutex_;
  std::vector<Trace> traces_;
  LoadResult result_;
  size_t done_ = 0;
};

}  // namespace coppice::cli
