// What stands behind coppice/tokenizer/tokenizer.h: a tokenizer from a model file's data, incremental decoding that never splits a
// UTF-8 character, chat templates.
// Layer: tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// INVALID_ARGUMENT or UNIMPLEMENTED names the field of `data`, its value and what is expected.
Result<std::unique_ptr<Tokenizer>> CreateTokenizer(TokenizerData data);

// Turns a stream of ids into text, piece by piece; a piece ends on a character boundary. Thread-compatible.
class IncrementalDecoder {
 public:
  // Where the ids stand: after others, whose text theirs continues (a generated answer), or at the start of a text, where
  // tokenizers that put a space before it take that away again.
  enum class Begin : uint8_t { kMidText, kText };

  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool keep_special = false, Begin begin = Begin::kMidText)
      : tokenizer_(&tokenizer),
        keep_special_(keep_special),
        strip_left_(begin == Begin::kText ? tokenizer.info().strip_start : 0) {}
  // Complete characters that this token finishes (maybe none). `keep_special`: of this one, whatever holds for all.
  std::string Push(int32_t id, bool keep_special = false);
  // What is left, each invalid or unfinished sequence as U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool keep_special_;
  int32_t strip_left_;  // spaces to take away at the start; -1: all
  std::string pending_;
};

// A chat template: the subset of Jinja that the supported models use, behind one interface.
class ChatTemplate {
 public:
  // UNIMPLEMENTED names the construct and the position in the source.
  static Result<std::unique_ptr<ChatTemplate>> Parse(const std::string& source);
  virtual ~ChatTemplate() = default;
  struct Variables {
    std::string bos_token, eos_token;
    bool add_generation_prompt = true;
    std::string fields = {};  // further variables, a JSON object: {"tools": [...], "enable_thinking": false}; empty: none
  };
  virtual Result<std::string> Render(const std::vector<ChatMessage>& messages, const Variables& variables) const = 0;
  // With the special tokens of a tokenizer: what Tokenizer::RenderChat gives, for further variables (Variables::fields).
  Result<std::string> Render(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer, std::string fields = {}) const;
};

}  // namespace coppice
