// Splits text into the pieces that the model encodes one by one. Knows no vocabulary. Layer: tokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// The pre-tokenizer that a GGUF file names as tokenizer.ggml.pre.
struct PreTokenizerKind {
  std::vector<std::string> patterns;  // each splits the pieces of the one before; matches and gaps are pieces
  bool normalize_nfc = false;
  bool ignore_merges = false;
};
// UNIMPLEMENTED names the kinds that exist.
Result<PreTokenizerKind> FindPreTokenizerKind(std::string_view name);

// A text, and the parts of it that are pieces; none is empty.
struct Pieces {
  struct Range {
    size_t begin, end;
  };
  std::string rewritten;  // owns the text once a step has changed it
  std::string_view text;
  std::vector<Range> ranges;

  std::string_view piece(size_t i) const { return text.substr(ranges[i].begin, ranges[i].end - ranges[i].begin); }
};

// Immutable after Create: safe to use from several threads.
class PreTokenizer {
 public:
  // No step: one piece. INVALID_ARGUMENT with PCRE2's message and position.
  static Result<PreTokenizer> Create(const std::vector<PreTokenizerStep>& steps);

  // Fills `pieces` from its `text`, which is valid UTF-8 and outlives it; `at_start`: the whole text begins with it.
  // INVALID_ARGUMENT where a pattern exceeds its match limit. Time: linear for the known kinds.
  Status Split(Pieces* pieces, bool at_start) const;

 private:
  struct Step {
    PreTokenizerStep rule;
    std::shared_ptr<const Regex> regex;  // kSplit
  };
  std::vector<Step> steps_;
};

}  // namespace coppice
