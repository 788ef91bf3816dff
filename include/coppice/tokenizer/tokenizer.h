// Text to token ids and back, as a model does it. Layer: public API of coppice::tokenizer; coppice/engine/engine.h gives the
// model's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

struct ChatMessage {
  std::string role, content;
  // The message's other fields, a JSON object: {"tool_calls": [...], "name": "..."}. A "content" in it takes the other one's place.
  // Empty: nothing.
  std::string fields = {};
};

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0, end = 0;
};

// Tokens between which a model was trained to fill in the middle of a text; -1: it has none.
struct FimTokens {
  int32_t prefix = -1, suffix = -1, middle = -1;  // before the text in front of the gap, that behind it, and the answer
  int32_t repository = -1, file = -1;             // before the name of a repository, of a file
  bool suffix_first = false;                      // the prompt is suffix, then prefix, which the answer goes on from; no middle
  std::vector<int32_t> ends;                      // end an answer, beside the eos ids

  bool usable() const { return prefix >= 0 && suffix >= 0 && middle >= 0; }
};

// A chat as a model's chat template writes it.
struct ChatPrompt {
  std::string text;  // special tokens written out
  // Ranges from messages and tools, in order and apart: there the texts of special tokens are text.
  std::vector<ByteRange> values;
};

// Immutable: safe to use from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  struct EncodeOptions {
    bool add_special = true;    // bos / eos as the model's metadata asks
    bool parse_special = true;  // special tokens written in the text become their ids
    // Where they do not all the same, so much as a byte of them; in order and apart. The text is one all the same: what it is cut
    // into and what merges do not depend on it.
    std::span<const ByteRange> values = {};
  };
  // INVALID_ARGUMENT if `text` cannot be tokenised (a regex limit on hostile input). Bytes that are no UTF-8 are encoded as bytes
  // by a byte-level tokenizer, and become U+FFFD each for the others, as in SentencePiece. Text that the vocabulary has no token
  // for is its unk token, or left out (SmolLM2 lacks a few control characters), as Hugging Face does.
  virtual Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const = 0;
  Result<std::vector<int32_t>> Encode(std::string_view text) const { return Encode(text, EncodeOptions()); }
  // Bytes of one token in the middle of a text; empty for a control token unless `keep_special`, and for an id that is none.
  virtual std::string_view TokenBytes(int32_t id, bool keep_special = false) const = 0;
  // The text that begins with these tokens: without the space that the tokenizer put before it. Invalid bytes are U+FFFD.
  std::string Decode(std::span<const int32_t> ids, bool keep_special = false) const;
  // Of a rendered chat, which begins and ends as the template says.
  Result<std::vector<int32_t>> Encode(const ChatPrompt& chat) const {
    return Encode(chat.text, {.add_special = false, .parse_special = true, .values = chat.values});
  }
  // The prompt that asks for the next message of a chat. INVALID_ARGUMENT if the model has no chat template, if the template
  // refuses the messages, or if it leaves out one of them: its role is none that the template knows. A developer's messages are
  // a system's where the template does not know that role. UNIMPLEMENTED names what the template uses and is not supported.
  Result<ChatPrompt> RenderChat(const std::vector<ChatMessage>& messages) const;

  // Other facts of the model's files.
  struct Info {
    int32_t bos_id = -1;  // -1: none
    std::vector<int32_t> eos_ids;
    bool add_bos = false, add_eos = false;  // what EncodeOptions::add_special adds
    std::string strip;                      // taken away where a text begins, at most so many times; -1: always
    int32_t strip_start = 0;
    std::string chat_template;       // Jinja source; empty: none
    std::string tool_chat_template;  // of chats with tools, where the model has one for them; empty: chat_template is for all
    FimTokens fim;
  };
  const Info& info() const { return info_; }

 protected:
  explicit Tokenizer(Info info) : info_(std::move(info)) {}

 private:
  Info info_;
};

}  // namespace coppice
