// What `coppice run` prints: samples as text, the JSON object, the progress line. Formatting only: strings in, strings out.
// Layer: cli.
#pragma once

#include <string>

#include "cli/generation.h"
#include "cli/run_stats.h"

namespace coppice::cli {

// One sample with its heading; token ids where the model has no tokenizer. rank counts from 1; 0: not ranked.
std::string FormatSample(const Sample& sample, int32_t rank = 0);

// The object of --json: prompt_ids, prompt_logprobs (with --prompt-logprobs), samples (finished ones; by index, or by rank if
// `ranked`), stats. Pretty-printed, with a line break at the end.
std::string FormatJson(const Generation& generation, const RunStats& stats, bool ranked);

// "prefill 512/512 tokens, decode 1,024/4,096 tokens at 812.3/s, 3/64 samples".
std::string FormatProgress(const GenerationProgress& progress);

}  // namespace coppice::cli
