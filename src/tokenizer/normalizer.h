// Changes to the text before it is split: Unicode forms, replacements, SentencePiece's treatment of spaces. Layer: tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// Immutable after Create: safe to use from several threads.
class Normalizer {
 public:
  // INVALID_ARGUMENT where a pattern or a character map is damaged. `user_defined` tokens pass kSentencePiece unchanged.
  static Result<Normalizer> Create(const std::vector<NormalizerStep>& steps, std::vector<std::string> user_defined);

  bool empty() const { return steps_.empty(); }
  // `text` is valid UTF-8, except where the first step is kSentencePiece: it makes every invalid byte U+FFFD. INVALID_ARGUMENT
  // where a pattern exceeds its match limit, or where the text becomes many times as long: hostile steps double it each.
  // `at_start`: the whole text begins here.
  Result<std::string> Normalize(std::string_view text, bool at_start = true) const { return Normalize(text, at_start, nullptr); }
  // As above; `ranges` of the text, in order and apart, become those of the result. Bytes made of a range's bytes and of others
  // together belong to the range.
  Result<std::string> Normalize(std::string_view text, bool at_start, std::vector<ByteRange>* ranges) const;

 private:
  class Alignment;
  // `most`: bytes that the result may have. `alignment`: gets what became of the text; null where that is not asked for.
  using Step = std::function<Result<std::string>(std::string_view, size_t most, bool at_start, Alignment* alignment)>;
  std::vector<Step> steps_;
};

}  // namespace coppice
