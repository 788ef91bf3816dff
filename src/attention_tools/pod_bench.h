// POD-Attention's experiments on one attention layer: hybrid batches computed one kind after the other, side by side and
// overlapped, all by this library's own kernels, in turns. `coppice bench pod` prints the results. Layer: attention, private.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "attention_tools/bench_device.h"
#include "attention_tools/pod_batches.h"
#include "core/interleaved_timing.h"

namespace coppice::attention {

enum class PodWay : uint8_t {
  kSerial,           // one launch, each SM the chunk's tiles first and then the requests (a CPU: kTwoLaunches, its serial way)
  kTwoLaunches,      // the chunk, then the requests
  kTwoStreams,       // a launch each, side by side
  kPrefillTile,      // one launch, the requests as tiles of 128 rows too (FI_Batched in the paper)
  kPartition,        // one launch, some SMs for the requests where that is predicted to gain (CTA-parallel)
  kOverlappedTiles,  // one launch, a warpgroup for the requests in each SM (warp-parallel, HFuse's idea), worth it or not
  kOverlapped,       // one launch, as the library chooses
  kChunkAlone,
  kDecodeAlone,
};
std::string_view Name(PodWay way);

struct PodRow {
  PodWay way;
  InterleavedTimes timed;  // seconds
};

struct PodResult {
  PodBatch batch;
  std::vector<PodRow> rows;                 // the ways that the device has; over_first: over the serial one, which is the first
  double sum_bound_s = 0, max_bound_s = 0;  // of rooflines: the chunk's and then the requests'; bytes and products of both at once

  const PodRow& Of(PodWay way) const;  // REQUIRES: has it
  bool Has(PodWay way) const;
  double Seconds(PodWay way) const { return Of(way).timed.Median(); }
  // Perfect overlap of the parts as they are alone.
  double OracleSeconds() const;
  // Whether there are both parts and each takes a fifth of the serial time: POD section 5.1's filter.
  bool BothCount() const;
};

struct PodOptions {
  int32_t page_size = 16;
  RoundsOptions rounds;
  double read_bytes_per_s = 0, product_flops_per_s = 0;  // of the bounds
};

// Measures batches one after the other on one piece of KV memory, which all of them read.
class PodBench {
 public:
  PodBench(BenchDevice& device, const PodOptions& options) : device_(device), options_(options) {}
  // Memory for the largest of these at once, so that it is filled once.
  Status Reserve(std::span<const PodBatch> batches);
  // Errors: those of plans; RESOURCE_EXHAUSTED without memory for KV; UNIMPLEMENTED for requests alone on a CPU.
  Result<PodResult> Run(const PodBatch& batch);

 private:
  BenchDevice& device_;
  PodOptions options_;
  std::unique_ptr<BenchMemory> kv_, q_, out_;
  int64_t kv_bytes_ = 0, row_bytes_ = 0;
};

}  // namespace coppice::attention
