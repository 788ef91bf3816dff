// The output of `coppice run`: samples as text, the JSON object, the progress line. Formatting only: strings in, strings out.
// Layer: cli.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/run_stats.h"
#include "openai/generation.h"

namespace coppice::cli {

// One sample with its heading; token ids where the model has no tokenizer. rank counts from 1; 0: not ranked. `echo`: what stands
// before the sample's own text.
std::string FormatSample(const openai::Sample& sample, int32_t rank = 0, std::string_view echo = {});

// "vote: 42 (5 of 8 samples: 0, 2, 3, 4, 7)", a line an answer.
std::string FormatVotes(const std::vector<VotedAnswer>& votes, int32_t samples);

struct JsonOptions {
  openai::Selection selection;
  bool echo = false;  // the prompt's text, token ids and log-probabilities come first in each sample; mean_logprob is without them
  const std::vector<VotedAnswer>* votes = nullptr;
};
// The object of --json: prompt_ids, prompt_logprobs (with --prompt-logprobs), samples (the selected ones), votes (with --vote),
// stats. Pretty-printed, with a line break at the end.
std::string FormatJson(const openai::Generation& generation, const RunStats& stats, const JsonOptions& options);

// A sample as it comes: its text, or its token ids where the model has no tokenizer.
class SampleStream {
 public:
  explicit SampleStream(bool has_text) : has_text_(has_text) {}

  // The text that an event of the sample adds to the output.
  std::string Add(const StreamEvent& event);
  // The end of the output, if anything came.
  std::string End() const { return ends_line_ ? "" : "\n"; }

 private:
  const bool has_text_;
  bool ends_line_ = true;  // nothing came yet, or a line break was the last
};

// "[####................] 1024/4096 tokens, 812.3/s, 0:04 left, 3/64 samples", or of a prompt, as parts of a ProgressLine.
std::vector<std::string> FormatProgress(const openai::GenerationProgress& progress);

}  // namespace coppice::cli
