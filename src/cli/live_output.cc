#include "cli/live_output.h"

#include <unistd.h>

#include <utility>

#include "cli/interrupt.h"
#include "cli/standard_output.h"

namespace coppice::cli {

LiveOutput::LiveOutput(const Options& options)
    : options_(options), shares_terminal_(options.streams && isatty(STDOUT_FILENO)), stream_(options.has_text) {}

openai::GenerationHooks LiveOutput::Hooks() {
  openai::GenerationHooks hooks;
  hooks.on_prompt = [this](const std::string& prompt) { echo_ = prompt; };
  if (options_.streams) {
    hooks.on_event = [this](const StreamEvent& event) {
      const std::string before = std::exchange(has_begun_, true) ? "" : echo_;
      PrintPiece(before + stream_.Add(event));
    };
  }
  if (options_.prints_samples) {
    hooks.on_sample = [this](const openai::Sample& sample) { PrintPiece(FormatSample(sample, /*rank=*/0, echo_)); };
  }
  hooks.on_step = [this](const openai::GenerationProgress& state) { ShowProgress(state); };
  hooks.should_stop = [this] { return Interrupted() || !printed_.ok(); };
  return hooks;
}

Status LiveOutput::End() {
  progress_.Clear();
  PrintPiece(stream_.End());
  return printed_;
}

void LiveOutput::PrintPiece(const std::string& text) {
  if (text.empty() || !printed_.ok()) return;
  progress_.Clear();
  printed_ = Print(text);
}

void LiveOutput::ShowProgress(const openai::GenerationProgress& state) {
  if (options_.shows_progress && !(shares_terminal_ && has_begun_) && progress_.due()) progress_.Show(FormatProgress(state));
}

}  // namespace coppice::cli
