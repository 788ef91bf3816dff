// Internals of coppice/tokenizer/tokenizer.h: a tokenizer from a model file's data, incremental decoding that never splits a
// UTF-8 character, chat templates.
// Layer: tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  // The rest of the text, each invalid or unfinished sequence as U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool keep_special_;
  int32_t strip_left_;  // spaces to take away at the start; -1: all
  std::string pending_;
};

// One of OpenAI's API.
bool IsStandardRole(std::string_view role);

// The prompt that a chat template made of messages.
struct RenderedChat {
  // Parts of one message that the prompt shows.
  struct Message {
    bool has_content = false, has_calls = false;  // some byte of its content, of its tool calls
    size_t content_end = 0;                       // in the text, behind the last byte of the content; 0: there is none
  };
  ChatPrompt prompt;
  std::vector<Message> messages;
  bool has_tools = false;  // some byte of the variable "tools"
};

// Forms of what OpenAI's API leaves open, of which a template expects one.
struct ChatForm {
  bool no_empty_content = false;  // beside tool calls empty content is none, not ""
  bool content_parts = false;     // content is a list of parts, not a text
  bool argument_texts = false;    // arguments of tool calls are JSON in a text, not an object
  bool complete_tools = false;    // optional fields of tools are there: an empty description, parameters without properties
};

// A chat template: the subset of Jinja that the supported models use, behind one interface. It renders what it is given, as jinja2
// does; which form of a chat it is to be given is chat_renderer.h's.
class ChatTemplate {
 public:
  // UNIMPLEMENTED names the construct and the position in the source.
  static Result<std::unique_ptr<ChatTemplate>> Parse(const std::string& source);
  virtual ~ChatTemplate() = default;
  struct Variables {
    std::string bos_token, eos_token;
    bool add_generation_prompt = true;
    std::string fields = {};            // further variables, a JSON object: {"tools": [...], "enable_thinking": false}; empty: none
    std::optional<ChatForm> form = {};  // nothing: messages and tools as they are
  };
  // Texts of messages and fields are traced to the prompt, roles apart: those that the template knows are its own words.
  virtual Result<RenderedChat> Render(const std::vector<ChatMessage>& messages, const Variables& variables) const = 0;
  // Whether the source names it: false is sure that no variable or field of that name is read.
  virtual bool Mentions(std::string_view name) const = 0;
  // Strings that the template compares roles with.
  virtual std::vector<std::string> Roles() const = 0;
  // Whether it distinguishes content that is none.
  virtual bool AsksForNone() const = 0;
};

}  // namespace coppice
