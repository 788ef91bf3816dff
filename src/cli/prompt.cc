#include "cli/prompt.h"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/read_file.h"
#include "core/check.h"
#include "tokenizer/tokenizer.h"

namespace coppice::cli {
namespace {

Result<std::string> ReadPipedPrompt() {
  if (isatty(STDIN_FILENO)) {
    return InvalidArgument("no prompt; give --prompt TEXT, --prompt-file FILE or --prompt-ids 1,2,3, or pipe text in");
  }
  return ReadStandardInput();
}

// Editors and shells end a file with a line break that is no part of what was written.
void DropFinalNewline(std::string* text) {
  if (!text->ends_with('\n')) return;
  text->pop_back();
  if (text->ends_with('\r')) text->pop_back();
}

Result<ChatPrompt> RenderPrompt(const std::string& user, const std::optional<std::string>& system, const Tokenizer& tokenizer) {
  if (tokenizer.info().chat_template.empty()) return InvalidArgument("the model has no chat template; leave --chat out");
  std::vector<ChatMessage> messages;
  if (system) messages.push_back({"system", *system});
  messages.push_back({"user", user});
  return tokenizer.RenderChat(messages);
}

}  // namespace

Result<std::optional<std::string>> ReadPromptText(const RunOptions& options) {
  if (options.prompt_ids) {
    if (options.prompt_ids->empty()) return InvalidArgument("--prompt-ids is empty; expected at least one token id");
    return std::optional<std::string>();
  }
  Result<std::string> text = options.prompt        ? Result<std::string>(*options.prompt)
                             : options.prompt_file ? ReadFile(*options.prompt_file, "--prompt-file")
                                                   : ReadPipedPrompt();
  if (!text.ok()) return text.status();
  if (!options.prompt && !options.keep_newline) DropFinalNewline(&*text);
  if (text->empty()) {
    return InvalidArgument(fmt::format("the prompt is empty{}; expected at least one character",
                                       options.prompt_file ? " (file " + *options.prompt_file + ")"
                                       : options.prompt    ? ""
                                                           : " (stdin)"));
  }
  return std::optional<std::string>(*std::move(text));
}

Result<std::vector<int32_t>> EncodePrompt(const RunOptions& options, const std::optional<std::string>& text,
                                          const Tokenizer* tokenizer) {
  if (!text) return *options.prompt_ids;
  if (tokenizer == nullptr) return InvalidArgument("the model has no tokenizer; give the prompt as --prompt-ids 1,2,3");
  if (!options.chat) return tokenizer->Encode(*text);
  COPPICE_ASSIGN_OR_RETURN(const ChatPrompt chat, RenderPrompt(*text, options.system, *tokenizer));
  return tokenizer->Encode(chat);
}

}  // namespace coppice::cli
