// Time of one attention layer over a given tree or forest, planned and forced, beside engines that do not share reads (`store`) or
// pages (`none`): what `coppice bench attention` prints.
// Layer: attention.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/cost_model.h"
#include "attention/owned_forest.h"
#include "attention_tools/bench_device.h"
#include "coppice/attention/attention.h"
#include "core/interleaved_timing.h"

namespace coppice::attention {

// A uniform tree whose requests have `queries` queries each (1: decode).
struct BenchTree {
  std::string name;
  std::vector<TreeLevel> levels;
  int32_t queries = 1;
};

// kDeterministic: planned and computed so that a request's bits do not depend on the batch (docs/numerics.md).
enum class BenchMode : uint8_t { kPlanned, kAllShared, kOneLevel, kStore, kNone, kDeterministic };
std::string_view Name(BenchMode mode);
inline constexpr BenchMode kAllBenchModes[] = {BenchMode::kPlanned, BenchMode::kAllShared, BenchMode::kStore, BenchMode::kNone,
                                               BenchMode::kDeterministic};

struct BenchRow {
  BenchMode mode;
  double median_s = 0, fastest_s = 0, slowest_s = 0;  // of one layer, over the rounds
  int rounds = 0;
  double kv_bytes = 0, flops = 0;  // read and computed, as the plan counts them
  double kv_bytes_unshared = 0;    // what a plan would read that shares nothing
  double predicted_s = 0;
  double roofline_s = 0;   // max(each token of KV once / read rate, flops / product rate): no run is faster, whatever caches hold
  Estimate over_planned;   // this mode's time / the planned one's, each round's: what drifts falls out
  bool same_work = false;  // the work list is the planned one's: over_planned is noise
  double percent_of_roofline() const { return 100 * roofline_s / median_s; }
};

struct BenchOptions {
  int32_t page_size = 16;  // of trees
  RoundsOptions rounds;
  // Layers that take turns, so that a layer's KV has left the caches when its turn comes again, as in a model: enough for this many
  // bytes (0: one layer, which stays in the caches if it fits). A device that flushes its caches before each run needs one layer.
  int64_t working_set_bytes = 0;
  std::span<const BenchMode> modes = kAllBenchModes;  // the first is kPlanned
  std::string machine_model_path;                     // constants for the planner; empty: shipped ones
};

// Measures trees, one after the other, on one piece of KV memory, which all modes read: where it lies makes no difference between
// them. It grows to what the largest layer needs.
class AttentionBench {
 public:
  AttentionBench(BenchDevice& device, const BenchOptions& options) : device_(device), options_(options) {}
  // The modes, interleaved. Errors: those of the plan; RESOURCE_EXHAUSTED without memory for KV.
  Result<std::vector<BenchRow>> Run(const AttentionSpec& spec, const BenchTree& tree);
  // The same over one forest, of whatever page size. REQUIRES: kNone is none of the modes, since the forest has no other pages.
  Result<std::vector<BenchRow>> Run(const AttentionSpec& spec, const OwnedForest& forest);
  // Runs each mode once and compares the last query of some branches with the oracle (reference.h), element by element. The largest
  // error, as a part of its tolerance (docs/numerics.md); INTERNAL names the mode, row, head and element where it is more than 1.
  // REQUIRES: as Run.
  Result<double> Check(const AttentionSpec& spec, const OwnedForest& forest);

 private:
  struct Contestant;
  struct Contest;
  using ForestOfMode = std::function<OwnedForest(BenchMode)>;

  Result<std::unique_ptr<Contest>> Prepare(const AttentionSpec& spec, const ForestOfMode& forest_of);
  Result<std::vector<BenchRow>> Measure(const AttentionSpec& spec, const ForestOfMode& forest_of);
  Status ReserveKv(int64_t bytes, DType dtype);

  BenchDevice& device_;
  BenchOptions options_;
  std::unique_ptr<BenchMemory> kv_;
  int64_t kv_bytes_ = 0;
  DType kv_dtype_ = DType::kBF16;
};

// One tree alone.
inline Result<std::vector<BenchRow>> RunAttentionBench(BenchDevice& device, const AttentionSpec& spec, const BenchTree& tree,
                                                       const BenchOptions& options) {
  return AttentionBench(device, options).Run(spec, tree);
}

}  // namespace coppice::attention
