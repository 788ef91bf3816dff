#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace coppice {

AddedTokenMatcher::AddedTokenMatcher(std::vector<std::pair<std::string_view, int32_t>> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const auto& token) { return token.first.empty(); });
  std::sort(tokens_.begin(), tokens_.end());
  for (const auto& token : tokens_) starts_token_[static_cast<uint8_t>(token.first[0])] = true;
}

}  // namespace coppice
