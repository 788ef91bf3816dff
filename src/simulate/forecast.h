// KV that a job of requests stores and reads with and without sharing, how many of its samples run at once, and how long a step of
// those takes: by its tree and the cost model alone. Layer: simulate. RelayAttention section 3.4; Hydragen appendix A.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/replica.h"
#include "simulate/trace.h"

namespace coppice::simulate {

// A piece of prompts with what lies below it: in order, each before its children.
struct JobNode {
  int32_t node = kNoNode;
  int32_t depth = 0;
  int64_t requests = 0, samples = 0;  // whose prompts go through it
  // Of the requests whose prompts end here, or in a piece below that no other prompt has: how many, and the tokens of those pieces.
  int64_t ends = 0;
  int32_t shortest_end = 0, longest_end = 0;
};

// Samples that decode at once, each in the middle of its answer.
struct ForecastStep {
  int64_t samples = 0;
  double seconds = 0, attention_seconds = 0, attention_seconds_apart = 0;
  double kv_bytes_read = 0, kv_bytes_read_unshared = 0;

  double seconds_apart() const { return seconds - attention_seconds + attention_seconds_apart; }
};

// b samples behind the prompt that the job's samples share most of, in the mean.
struct BreakEven {
  int32_t samples = 0;
  double attention_gain = 0;   // predicted: time apart over time as it is planned
  double relay_gain = 0;       // RelayAttention, equation 10: by what is read alone
  double step_gain = 0;        // of whole steps: Hydragen, appendix A
  double attention_share = 0;  // of a step that shares nothing, the part that attention takes
};

struct Forecast {
  int64_t requests = 0, samples = 0, prompt_tokens = 0, output_tokens = 0;
  int64_t stored_tokens = 0, stored_tokens_apart = 0;  // of KV, were all of them there at once
  int64_t computed_tokens = 0;                         // of prompts, each shared one once
  int64_t kv_tokens = 0;                               // that the cache holds
  int64_t largest_batch = 0, largest_batch_apart = 0;  // samples at once, in the order of the tree
  ForecastStep step;                                   // of the largest batch
  double shared_tokens = 0, own_tokens = 0;            // of a sample in the mean: of its prompt with others; its own
  std::vector<BreakEven> break_even;
  std::vector<JobNode> tree;  // pieces that more than one request has
};

// Limits are those of `server`. REQUIRES: a trace with requests, server.kv_tokens > 0.
Forecast MakeForecast(const Trace& trace, const Costs& costs, const ServerOptions& server);

}  // namespace coppice::simulate
