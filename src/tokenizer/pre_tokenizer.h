// Splits text into the pieces that byte-level BPE encodes one by one: the regexes of the model, matched with PCRE2.
// Knows no vocabulary. Layer: tokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

// What a GGUF file means by tokenizer.ggml.pre.
struct PreTokenizerKind {
  std::vector<std::string> patterns;
  bool normalize_nfc = false;
  bool ignore_merges = false;
};
// UNIMPLEMENTED names the kinds that exist.
Result<PreTokenizerKind> FindPreTokenizerKind(std::string_view name);

// Immutable after Create: safe to use from several threads.
class PreTokenizer {
 public:
  // Patterns are applied in order, each to the pieces of the one before; matches and the gaps between them all become pieces
  // (Hugging Face: Split, behavior Isolated). No pattern: one piece. INVALID_ARGUMENT with PCRE2's message and position.
  static Result<PreTokenizer> Create(const std::vector<std::string>& patterns);

  // Appends the pieces of `text` in order; none is empty, and together they are `text`. A run of invalid UTF-8 is a piece of its
  // own. INVALID_ARGUMENT where a pattern exceeds its match limit. Time: linear for the known kinds.
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  struct Splitter;
  std::vector<std::shared_ptr<const Splitter>> splitters_;
};

}  // namespace coppice
