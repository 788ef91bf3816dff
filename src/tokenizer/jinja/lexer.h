// Tokens of a chat template, whitespace control applied: trim_blocks and lstrip_blocks are on, as in Hugging Face transformers.
// Layer: tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::jinja {

struct Position {
  int line = 1, column = 1;  // from 1; columns count bytes
};

// Both throw Error; the message begins with the position.
[[noreturn]] void FailSyntax(Position position, const std::string& message);
[[noreturn]] void FailUnimplemented(Position position, const std::string& message);

struct Token {
  enum class Kind : uint8_t {
    kText,           // outside of tags
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of a string its value, escapes resolved
  Position position;
};

// Ends with a kEnd token.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace coppice::jinja
