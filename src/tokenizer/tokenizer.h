// Text to token ids and back: normalizer, pre-tokenizer, BPE or unigram model, special tokens; incremental decoding that never
// splits a UTF-8 character.
// Layer: tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// Immutable after Create: safe to use from several threads.
class Tokenizer {
 public:
  // INVALID_ARGUMENT or UNIMPLEMENTED names the field of `data`, its value and what is expected.
  static Result<std::unique_ptr<Tokenizer>> Create(TokenizerData data);
  virtual ~Tokenizer() = default;

  struct EncodeOptions {
    bool add_special = true;    // bos / eos as the model's metadata asks
    bool parse_special = true;  // special tokens written in the text become their ids
  };
  // INVALID_ARGUMENT if `text` cannot be tokenised (a regex limit on hostile input). Bytes that are no UTF-8 are encoded as bytes
  // by a byte-level tokenizer, and become U+FFFD each for the others, as in SentencePiece. What the vocabulary has no token for is
  // its unk token, or left out (SmolLM2 lacks a few control characters), as Hugging Face does.
  virtual Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const = 0;
  Result<std::vector<int32_t>> Encode(std::string_view text) const { return Encode(text, EncodeOptions()); }
  // Bytes of one token in the middle of a text; empty for a control token unless `keep_special`.
  virtual std::string_view TokenBytes(int32_t id, bool keep_special = false) const = 0;
  // The text that begins with these tokens: without the space that the tokenizer put before it. Invalid bytes are U+FFFD.
  std::string Decode(std::span<const int32_t> ids, bool keep_special = false) const;

  const TokenizerData& data() const { return data_; }

 protected:
  explicit Tokenizer(TokenizerData data) : data_(std::move(data)) {}
  TokenizerData data_;
};

// Turns a stream of ids into text, piece by piece; a piece ends on a character boundary. Thread-compatible.
class IncrementalDecoder {
 public:
  // Where the ids stand: after others, whose text theirs continues (a generated answer), or at the start of a text, where
  // tokenizers that put a space before it take that away again.
  enum class Begin : uint8_t { kMidText, kText };

  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool keep_special = false, Begin begin = Begin::kMidText)
      : tokenizer_(&tokenizer),
        keep_special_(keep_special),
        strip_left_(begin == Begin::kText ? tokenizer.data().decoder.strip_start : 0) {}
  // Complete characters that this token finishes (maybe none).
  std::string Push(int32_t id);
  // What is left, each invalid or unfinished sequence as U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool keep_special_;
  int32_t strip_left_;  // spaces to take away at the start; -1: all
  std::string pending_;
};

struct ChatMessage {
  std::string role, content;
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
  };
  virtual Result<std::string> Render(const std::vector<ChatMessage>& messages, const Variables& variables) const = 0;
};

}  // namespace coppice
