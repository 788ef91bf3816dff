// One sample's text on its way out: decodes token by token, finds stop strings across token boundaries, and holds back what may
// become a part of one. Layer: engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tokenizer/tokenizer.h"

namespace coppice {

// Thread-compatible; copies go on from where the original is.
class TextStream {
 public:
  TextStream() = default;
  // All of them outlive the stream; without a tokenizer all text is empty. `visible`: Request::visible_tokens.
  TextStream(const Tokenizer* tokenizer, std::span<const std::string> stops, std::span<const int32_t> visible = {})
      : stops_(stops), visible_(visible) {
    if (tokenizer) decoder_.emplace(*tokenizer);
  }

  // Decodes a token. Text that may go out is added to `text`: never a stop string, never the beginning of one. Returns the place of
  // a stop string when it is complete, of several the one that begins first: the text before it has gone out, the rest is dropped.
  // `look_for_stops` false: stop strings that end in this
  // token's text do not count (min_tokens).
  std::optional<int32_t> Push(int32_t token, bool look_for_stops, std::string* text);
  // The sample ended otherwise: what was held back goes out.
  void Finish(std::string* text);

 private:
  std::optional<IncrementalDecoder> decoder_;
  std::span<const std::string> stops_;
  std::span<const int32_t> visible_;
  std::string held_;
};

// The text that a prompt was encoded from, special tokens included; the beginning-of-text token that Encode adds is left out.
std::string PromptText(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace coppice
