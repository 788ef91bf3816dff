// Finds the tokens that are matched in the text itself, before any splitting: control and user-defined tokens.
// Layer: tokenizer.
#pragma once

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
  std::optional<Match> Find(std::string_view text, size_t from) const;
  // The longest match that begins at `begin`.
  std::optional<Match> MatchAt(std::string_view text, size_t begin) const;

 private:
  std::vector<std::pair<std::string_view, int32_t>> tokens_;  // sorted by text: those with a common prefix are neighbours
  std::array<bool, 256> starts_token_{};
};

}  // namespace coppice
