// One attention problem with its data: a random forest, a pool filled from it (NaN wherever nothing was written), queries, and the
// comparison of a backend's result with the fp64 oracle. The same body runs on every device.
// Layer: tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/cpu/tile_forms.h"
#include "attention_tools/reference.h"
#include "tests/support/random_forest.h"

namespace coppice::attention::testing {

// Memory that a backend's kernels can read and write.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* data() = 0;
  virtual void CopyFrom(std::span<const std::byte> host) = 0;
  virtual void CopyTo(std::span<std::byte> host) = 0;  // waits for the device
};

// A device under test.
class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual Backend& backend() = 0;
  virtual std::unique_ptr<DeviceMemory> Allocate(size_t bytes) = 0;
  // Whether P and V of some tiles are rounded to integers.
  virtual bool HasIntegerProducts(const AttentionSpec&) const { return false; }
};

// Four threads, so that work is handed around even on a small machine. `isa` at most what the machine has.
std::unique_ptr<TestDevice> MakeCpuTestDevice(int num_threads = 4, const cpu::TileForms& forms = cpu::DetectIsa());

enum class KvLayout : uint8_t { kNative, kNhd, kSeparate };

struct CaseOptions {
  AttentionSpec spec;
  RandomForestOptions forest;
  KvLayout layout = KvLayout::kNative;
  float k_scale = 1, v_scale = 1;
  float q_magnitude = 1;
  int32_t row_padding = 0;  // elements after each row of q and out
  uint64_t seed = 0;

  std::string ToString() const;
};

// Everything a random property test varies, from one number.
CaseOptions RandomCase(uint64_t seed);

struct AttentionOutput {
  std::vector<float> out;      // [rows, heads, head_dim], widened
  std::vector<float> lse;      // [rows, heads]
  std::vector<std::byte> raw;  // as written, padding included
};

class AttentionCase {
 public:
  explicit AttentionCase(TestDevice& device, const CaseOptions& options);

  RandomForest& forest() { return forest_; }
  const AttentionSpec& spec() const { return options_.spec; }
  // Writes the pool and the queries for the forest's present state; call after each edit of the forest. All values depend on the
  // token alone, so that one request is the same in every forest.
  void Refresh();
  const KvLayerView& kv() const { return kv_; }
  Result<std::unique_ptr<BoundKv>> Bind() { return device_.backend().BindKv(options_.spec, kv_); }
  RunArgs Args(bool with_lse = true);
  const void* host_q() const { return host_q_.data(); }
  // Reads what a run with Args() wrote.
  AttentionOutput Read();
  // Empty if `output` agrees with the oracle within ToleranceFor; else the first coordinate that does not, with both values.
  std::string Compare(const AttentionOutput& output, int32_t contributions, bool with_lse = true) const;
  ReferenceResult Reference() const;
  int64_t num_rows() const { return forest_.num_query_rows(); }

 private:
  TestDevice& device_;
  CaseOptions options_;
  RandomForest forest_;
  std::vector<std::byte> host_pool_, host_q_;
  std::unique_ptr<DeviceMemory> pool_, q_, out_, lse_;
  KvLayerView kv_, host_kv_;
};

}  // namespace coppice::attention::testing
