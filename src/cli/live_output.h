// Samples on standard output while they are made, and on standard error how far the others are. Layer: cli.
#pragma once

#include <string>

#include "cli/progress_line.h"
#include "cli/run_output.h"
#include "coppice/core/status.h"
#include "openai/generation.h"

namespace coppice::cli {

// Of one generation; used by one thread.
class LiveOutput {
 public:
  struct Options {
    bool streams = false;         // one sample, printed as it comes
    bool prints_samples = false;  // several, each as it ends
    bool has_text = true;         // else token ids stream
    bool shows_progress = true;
  };
  explicit LiveOutput(const Options& options);
  LiveOutput(const LiveOutput&) = delete;
  LiveOutput& operator=(const LiveOutput&) = delete;

  // For openai::Generate; they refer to this object. A print that fails ends the generation, whose output would be lost.
  openai::GenerationHooks Hooks();
  // Once the generation is over: ends the line that streams. The error of the print that failed.
  Status End();
  // With Request::echo, the prompt's text.
  const std::string& echo() const { return echo_; }

 private:
  void PrintPiece(const std::string& text);
  void ShowProgress(const openai::GenerationProgress& state);

  const Options options_;
  const bool shares_terminal_;  // text that streams and progress, which would be in each other's way
  ProgressLine progress_;
  SampleStream stream_;
  std::string echo_;
  bool has_begun_ = false;  // the sample that streams
  Status printed_;
};

}  // namespace coppice::cli
