// Forest traces (docs/traces.md) replayed through attention, step by step: `coppice bench attention --trace`. Layer: cli.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "attention_tools/attention_bench.h"
#include "attention_tools/forest_trace.h"
#include "coppice/core/status.h"

namespace coppice::cli {

// A step of a trace with pages for its tokens.
struct ReplayedStep {
  int64_t number = 0;  // in the trace, from 1
  attention::OwnedForest forest;
};

struct ReplayedTrace {
  std::string path;
  attention::ForestTraceHead head;
  int64_t num_steps = 0;            // of the trace
  std::vector<ReplayedStep> steps;  // those to replay, in order
};

// Reads a trace, plain or gzip, and lays out `most_steps` of its steps, evenly apart; 0: all. Errors name the file and the line.
Result<ReplayedTrace> ReadForestTrace(const std::string& path, int32_t most_steps);

// The modes of a replay: what the planner shares, what all branches have in common alone, and nothing.
inline constexpr attention::BenchMode kReplayModes[] = {attention::BenchMode::kPlanned, attention::BenchMode::kOneLevel,
                                                        attention::BenchMode::kStore};

// Over the steps that were replayed and all layers.
struct ReplayTotals {
  attention::BenchMode mode = {};
  double attention_s = 0, median_step_s = 0;
  double kv_bytes = 0, kv_bytes_unshared = 0;
};

struct ReplayResult {
  std::vector<ReplayTotals> totals;  // by mode
  nlohmann::ordered_json rows;       // by step and mode
  double largest_error = 0;          // of the steps that were checked, as a part of the tolerance (AttentionBench::Check)
};

// `bench` has kReplayModes. `layers`: those of the trace's head, or others.
Result<ReplayResult> Replay(attention::AttentionBench& bench, const ReplayedTrace& trace,
                            std::span<const attention::TracedLayers> layers);

}  // namespace coppice::cli
