// Costs of a model's steps on a machine that need not be this one: attention by the planner's machine models, all else by
// measured steps or, without them, by the roofline of weights in 16 bits. Layer: simulate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "model/config.h"
#include "simulate/replica.h"
#include "simulate/step_times.h"

namespace coppice::simulate {

struct CostOptions {
  // A shipped machine model's name or a file of `coppice bench calibrate`; empty: this machine's. Of CPUs plans are those of this
  // machine's instruction set.
  std::string machine;
  int threads = 0;  // of a CPU; 0: one per core of this machine
  int ranks = 1;    // GPUs that divide the model: times, bytes and KV are those of each
  KvSplit kv_split = KvSplit::kAuto;
  int32_t max_running = 256, max_context = 0;  // what kAuto decides by; max_context 0: the model's
  int64_t kv_bytes = 0;                        // of the cache of a rank
  int32_t page_size = 16;                      // on each rank
  DType dtype = DType::kBF16;                  // of KV and products
  int64_t parameters = 0;                      // of the model, all tensors
  std::optional<StepTimes> steps;              // absent: by the roofline
};

struct MachineCosts {
  Costs costs;
  std::string machine;  // its name
  int ranks = 1;
  KvSplit kv_split = KvSplit::kHeads;
  std::string kv_split_reason;  // why; empty where ranks do not exceed KV heads
  bool has_step_times = false;
};

// NOT_FOUND lists the machines; INVALID_ARGUMENT: ranks on a CPU, or more than query heads, or a split of KV that cannot be;
// UNIMPLEMENTED for heads that no kernel
// of a GPU serves.
Result<MachineCosts> MakeCosts(const ModelConfig& config, const CostOptions& options);

}  // namespace coppice::simulate
