// The precompiled character map of SentencePiece: a double-array trie (Darts) from byte sequences to replacements.
// Every index of the file is checked as it is used. Layer: tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

// Immutable after Create: safe to use from several threads.
class CharsMap {
 public:
  // `blob`: the bytes of the trie (4, little endian), its units (4 bytes each), then the replacements, each ended by a zero byte.
  // INVALID_ARGUMENT where the sizes do not agree.
  static Result<CharsMap> Create(std::string_view blob);

  struct Match {
    size_t length;  // of the key
    std::string_view replacement;
  };
  // The shortest or the longest key that `text` begins with.
  std::optional<Match> Shortest(std::string_view text) const { return Find(text, false); }
  std::optional<Match> Longest(std::string_view text) const { return Find(text, true); }

 private:
  std::optional<Match> Find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace coppice
