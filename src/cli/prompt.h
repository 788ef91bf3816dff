// From what the user typed to token ids: reads the prompt's text, applies the chat template, encodes.
// Layer: cli.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run_options.h"
#include "coppice/core/status.h"

namespace coppice {
class Tokenizer;
}  // namespace coppice

namespace coppice::cli {

// The text of --prompt, --prompt-file or stdin, the latter two without a final line break unless it is to be kept; nullopt with
// --prompt-ids. Errors: a file that cannot be read, an empty prompt,
// stdin a terminal. Called before the model is loaded, so that such mistakes show at once.
Result<std::optional<std::string>> ReadPromptText(const RunOptions& options);

// Token ids of the prompt. tokenizer is null for a model without one, which takes --prompt-ids only.
Result<std::vector<int32_t>> EncodePrompt(const RunOptions& options, const std::optional<std::string>& text,
                                          const Tokenizer* tokenizer);

}  // namespace coppice::cli
