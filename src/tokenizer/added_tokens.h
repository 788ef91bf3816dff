// Finds the tokens that are matched in the text itself, before any splitting: control and user-defined tokens.
// Layer: tokenizer.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice {

// Immutable after construction: safe to use from several threads.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin, length;
    int32_t id;
  };

  // (text, id) pairs; the texts stay owned by the caller, and empty ones never match.
  explicit AddedTokenMatcher(std::vector<std::pair<std::string_view, int32_t>> tokens);

  bool empty() const { return tokens_.empty(); }
  // The leftmost match at or after `from`, the longest of those that begin there.
  std::optional<Match> Find(std::string_view text, size_t from) const { return Find(text, from, kAccept); }
  // The longest match that begins at `begin`.
  std::optional<Match> MatchAt(std::string_view text, size_t begin) const { return MatchAt(text, begin, kAccept); }
  // The same among the matches that `accept` takes; of each token it is asked once for each place.
  template <class Accept>  // bool(const Match&)
  std::optional<Match> Find(std::string_view text, size_t from, const Accept& accept) const {
    if (tokens_.empty()) return std::nullopt;
    for (size_t begin = from; begin < text.size(); ++begin) {
      if (const auto match = MatchAt(text, begin, accept)) return match;
    }
    return std::nullopt;
  }
  template <class Accept>
  std::optional<Match> MatchAt(std::string_view text, size_t begin, const Accept& accept) const;

 private:
  static constexpr auto kAccept = [](const Match&) { return true; };

  std::vector<std::pair<std::string_view, int32_t>> tokens_;  // sorted by text: those with a common prefix are neighbours
  std::array<bool, 256> starts_token_{};
};

template <class Accept>
std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::MatchAt(std::string_view text, size_t begin,
                                                                   const Accept& accept) const {
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
    const size_t length = depth + 1;
    bool is_taken = false;  // of tokens with the same text the first one counts
    for (; low != high && low->first.size() == length; ++low) {
      const Match match = {begin, length, low->second};
      if (is_taken || !accept(match)) continue;
      longest = match;
      is_taken = true;
    }
    if (low == high) break;
  }
  return longest;
}

}  // namespace coppice
