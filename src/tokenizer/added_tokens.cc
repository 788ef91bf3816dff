#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace coppice {

AddedTokenMatcher::AddedTokenMatcher(std::vector<std::pair<std::string_view, int32_t>> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const auto& token) { return token.first.empty(); });
  std::sort(tokens_.begin(), tokens_.end());
  for (const auto& token : tokens_) starts_token_[static_cast<uint8_t>(token.first[0])] = true;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (const auto match = MatchAt(text, begin)) return match;
  }
  return std::nullopt;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::MatchAt(std::string_view text, size_t begin) const {
  std::optional<Match> longest;
  if (begin >= text.size() || !starts_token_[static_cast<uint8_t>(text[begin])]) return longest;
  // Narrow the range of tokens that agree with the text, one byte at a time; the shortest of a range comes first.
  auto low = tokens_.begin(), high = tokens_.end();
  for (size_t depth = 0; begin + depth < text.size(); ++depth) {
    const auto byte = static_cast<uint8_t>(text[begin + depth]);
    const auto byte_at_depth = [depth](const auto& token) { return static_cast<uint8_t>(token.first[depth]); };
    low = std::partition_point(low, high, [&](const auto& token) { return byte_at_depth(token) < byte; });
    high = std::partition_point(low, high, [&](const auto& token) { return byte_at_depth(token) <= byte; });
    if (low == high) break;
    if (low->first.size() == depth + 1) {
      longest = Match{begin, depth + 1, low->second};
      while (low != high && low->first.size() == depth + 1) ++low;
      if (low == high) break;
    }
  }
  return longest;
}

}  // namespace coppice
