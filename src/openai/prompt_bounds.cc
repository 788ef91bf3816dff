#include "openai/prompt_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace coppice::openai {

namespace {

size_t LongestToken(const Tokenizer& tokenizer, int32_t vocab_size) {
  size_t bytes = 0;
  for (int32_t id = 0; id < vocab_size; ++id) bytes = std::max(bytes, tokenizer.TokenBytes(id, /*keep_special=*/true).size());
  return bytes;
}

}  // namespace

PromptBounds::PromptBounds(const Tokenizer* tokenizer, int32_t vocab_size, int32_t max_context)
    : max_token_bytes_(tokenizer ? LongestToken(*tokenizer, vocab_size) : 0),
      max_context_(static_cast<size_t>(std::max(max_context, 0))),
      max_bytes_(max_token_bytes_ > 0 && max_context > 0 ? max_context_ * max_token_bytes_ : std::numeric_limits<size_t>::max()) {}

Status PromptBounds::CheckText(std::string_view what, size_t bytes) const {
  if (bytes <= max_bytes_) return OkStatus();
  return InvalidArgument(
      fmt::format("{} has {} bytes; the context has {} tokens, which are at most {} bytes each, {} together: shorten it", what,
                  bytes, max_context_, max_token_bytes_, max_bytes_));
}

Status PromptBounds::CheckMessages(const std::vector<ChatMessage>& messages) const {
  COPPICE_RETURN_IF_ERROR(CheckTokens("the list of messages", messages.size()));
  size_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += message.role.size() + message.content.size() + message.fields.size();
  return CheckText("the text of the messages", bytes);
}

Status PromptBounds::CheckTokens(std::string_view what, size_t tokens) const {
  if (max_context_ == 0 || tokens <= max_context_) return OkStatus();
  return InvalidArgument(
      fmt::format("{} has {} entries, each a token at least; the context has {} tokens: shorten it", what, tokens, max_context_));
}

}  // namespace coppice::openai
