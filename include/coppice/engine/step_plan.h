// The plan of a step in terms of the prefix tree: which tokens attention read once for several samples, which apart, and why; and
// that in words, for command lines, servers and bindings alike. Layer: public API of coppice::engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/attention/node_reads.h"

namespace coppice {

// How attention read the KV of one node of the prefix tree (CachedPrefix) that several samples of the step go through.
struct PlannedRead {
  int32_t node = 0, parent = 0;  // CachedPrefix::id; its parent reads for at least as many samples
  int32_t begin = 0, end = 0;    // tokens
  int32_t samples = 0;           // of the step, those that read it
  // Which nodes the plan decided about as one: neighbours that the same samples go through.
  int32_t decision = 0;
  bool together = false;
  attention::ReadReason reason = attention::ReadReason::kOneReader;
  double together_us = 0, apart_us = 0;  // as attention::NodeRead has them
};

struct StepPlan {
  int64_t step = 0;  // StepMetrics::step
  int32_t decode_rows = 0, prefill_rows = 0;
  int64_t kv_bytes_read = 0, kv_bytes_read_unshared = 0;  // over all layers
  std::vector<PlannedRead> reads;                         // parents first; empty: no two samples have tokens in common
};

// How a node was read and why, as a sentence: "16 samples read them together: ...". "Them" are its tokens.
std::string ReasonText(const PlannedRead& read);
// The whole plan, a line for each range of tokens and what the step read in all; ends in a newline.
std::string PlanText(const StepPlan& plan);

}  // namespace coppice
