// How large a prompt may be before any work goes into it. A prompt too long for the context is refused by its bytes: a
// text of n bytes has at least n / (bytes of the longest token) tokens, so that the check costs nothing, where rendering and
// tokenising it would take seconds. White space that a tokenizer drops counts as any other text. Layer: openai.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer.h"

namespace coppice::openai {

// Immutable.
class PromptBounds {
 public:
  // `tokenizer` may be null: there are no texts then. `vocab_size`: its tokens; 0: not known, and no text is refused.
  PromptBounds(const Tokenizer* tokenizer, int32_t vocab_size, int32_t max_context);

  // Bytes of text that `max_context` tokens can be; SIZE_MAX where a token may be any number of them.
  size_t max_bytes() const { return max_bytes_; }

  // INVALID_ARGUMENT, with the numbers, where so much is more than a context can take. `what`: "the prompt".
  Status CheckText(std::string_view what, size_t bytes) const;
  // Each message is a token at least.
  Status CheckMessages(const std::vector<ChatMessage>& messages) const;
  Status CheckTokens(std::string_view what, size_t tokens) const;

 private:
  const size_t max_token_bytes_, max_context_, max_bytes_;
};

}  // namespace coppice::openai
