// A device as the attention benchmark needs it: memory, a clock, ceilings. Layer: attention, private.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "attention/backend.h"
#include "attention/cpu/cpu_features.h"
#include "attention_tools/cpu/roofline.h"

namespace coppice::attention {

// Memory that the device's kernels can reach.
class BenchMemory {
 public:
  virtual ~BenchMemory() = default;
  virtual void* data() = 0;
  virtual Status CopyFrom(std::span<const std::byte> host) = 0;
  // Copies its first bytes to `host`, once the runs that Time started are over.
  virtual Status CopyTo(std::span<std::byte> host) = 0;
};

class BenchDevice {
 public:
  virtual ~BenchDevice() = default;
  virtual Backend& backend() = 0;
  virtual std::string name() const = 0;
  // Ceilings, for rooflines: what no run exceeds.
  virtual double product_flops_per_s() const = 0;
  virtual double read_bytes_per_s() const = 0;
  // True: data that was read before is out of the caches when a timed run begins.
  virtual bool flushes_caches() const = 0;
  virtual Result<std::unique_ptr<BenchMemory>> Allocate(size_t bytes) = 0;
  // Seconds that the device takes for what `run` does or starts on the given stream.
  virtual Result<double> Time(const std::function<Status(Stream)>& run) = 0;
  // The same of two runs side by side, on a stream each. UNIMPLEMENTED where a device has one.
  virtual Result<double> TimeOnTwoStreams(const std::function<Status(Stream)>&, const std::function<Status(Stream)>&) {
    return Unimplemented(name() + " has no streams");
  }
};

// Normally distributed values.
Result<std::unique_ptr<BenchMemory>> RandomBenchMemory(BenchDevice& device, size_t bytes, DType dtype, uint64_t seed);

// The CPU, its roofline measured now (about a second). `executor` outlives the device.
Result<std::unique_ptr<BenchDevice>> MakeCpuBenchDevice(Executor& executor, cpu::Isa isa);
// A CUDA device: runs are captured once and timed as graph replays, with the L2 flushed before each. Its ceilings are what its
// memory bus and tensor cores do at their highest clocks. UNAVAILABLE, naming the build option, where CUDA is not built.
Result<std::unique_ptr<BenchDevice>> MakeCudaBenchDevice(int device);

}  // namespace coppice::attention
