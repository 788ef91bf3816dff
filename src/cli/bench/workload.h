// Requests for benchmarks: which prompts, what they share, how long the answers are, when they arrive. Token ids are random, so any
// model will do and no tokenizer is needed; the same seed gives the same requests.
// Shapes: SGLang's generated-shared-prefix; Hydragen 4.3 (document) and 4.4 (few-shot); RelayAttention appendix D (relay); POD
// figure 15 (ratio); self-consistency on GSM8K, Hydragen table 1 (gsm8k); MMLU, RelayAttention table 3 (mmlu); PagedAttention
// (arXiv 2309.06180), figure 11 (sharegpt); Sarathi-Serve (arXiv 2403.02310), table 2 (sarathi, arxiv); POD section 5 (pod-arxiv,
// pod-internal). Layer: cli.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::cli {

enum class WorkloadKind : uint8_t {
  kSharedPrefix,  // groups, each with a system prompt of its own, which its requests share
  kFewShot,       // one prefix for all, a problem a request, many samples of each problem: two levels
  kDocument,      // one long document, a short question a request, a short answer
  kTree,          // a uniform prefix tree of any depth
  kRelay,         // one system prompt whose length varies from point to point, for three sizes of request and answer
  kMixture,       // half of the requests share a prefix, a third another one, the rest nothing
  kSampling,      // unrelated prompts, many samples of each
  kRatio,         // unrelated requests of one total length, whose share of prompt varies from point to point
  kShareGpt,      // single turns: lengths distributed as those of ShareGPTv3
  kSarathi,       // conversations: lengths distributed as those of openchat_sharegpt4
  kArxiv,         // summaries of papers: lengths distributed as those of arXiv-summarization
  kPodArxiv,      // the same, distributed as POD-Attention has them
  kPodInternal,   // its other workload, of longer prompts and shorter answers
  kGsm8k,         // few-shot examples for all, a problem a request, many samples of each to vote: two levels
  kMmlu,          // few-shot examples of each of 57 subjects, which its questions share
  kLengths,       // lengths from a file
};
std::string_view Name(WorkloadKind kind);
Result<WorkloadKind> ParseWorkloadKind(std::string_view text);

struct WorkloadOptions {
  WorkloadKind kind = WorkloadKind::kSharedPrefix;
  // Absent: the kind's own (docs/benchmarks.md). One that the kind has no use for is refused.
  std::optional<int32_t> groups;         // shared-prefix
  std::optional<int32_t> requests;       // of a group, or in all
  std::optional<int32_t> shared_tokens;  // of each prefix; those of published lengths: of a system prompt before all
  std::optional<int32_t> unique_tokens;  // of each request's own prompt
  std::optional<int32_t> output_tokens;  // of each sample
  std::optional<int32_t> samples;        // of each request
  std::optional<int32_t> total_tokens;   // ratio: prompt and output of a request
  std::optional<int32_t> shots;          // gsm8k, mmlu: examples before each question
  bool single_level = false;             // few-shot, gsm8k: each sample is a request of its own, which has its problem for itself
  std::vector<int32_t> prefixes;         // relay and those of published lengths: of the system prompt
  std::vector<int32_t> ratios;           // ratio: prompt tokens per output token
  std::string tree;                      // tree: "1024,256x4,64x8" as of ParseTree
  std::string lengths_file;              // lengths: a line "prompt output [group shared]" a request
  double scale = 1;                      // of the number of groups, or of requests where there are no groups
  uint64_t seed = 0;
  int32_t vocab_size = 0, max_context = 0;  // of the engine
  int32_t longest_context = 0;              // what --max-context may ask for at most; 0: not known
};

struct WorkloadRequest {
  std::vector<int32_t> prompt_ids;
  int32_t samples = 1, output_tokens = 1;
};

// The workloads measured at once.
struct WorkloadPoint {
  std::string label;
  double x = 0;  // where it stands on the x axis of its workload
  std::vector<WorkloadRequest> requests;
};

struct Workload {
  std::string x_label;  // empty: one point, no axis
  std::vector<WorkloadPoint> points;
};

// INVALID_ARGUMENT names the option, its value and what is expected, or the request that is longer than the context.
Result<Workload> MakeWorkload(const WorkloadOptions& options);

// Seconds from the start at which `count` requests arrive: a Poisson process of `rate` requests a second.
std::vector<double> PoissonArrivals(size_t count, double rate, uint64_t seed);

}  // namespace coppice::cli
