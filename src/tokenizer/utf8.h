// UTF-8 in small: one strict decoder for everything in this layer, so that encoder and decoder agree on what is invalid.
// Layer: tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coppice {

enum class Utf8Kind : uint8_t {
  kValid,
  kInvalid,     // can never become a character, whatever follows
  kIncomplete,  // the text ends inside a character that may still be completed
};

struct Utf8Char {
  char32_t code_point;  // U+FFFD unless valid
  size_t length;        // bytes; for an invalid sequence its maximal subpart (Unicode 15.0, section 3.9, table 3-8)
  Utf8Kind kind;
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The character at the start of `text`. REQUIRES: `text` is not empty.
Utf8Char DecodeUtf8(std::string_view text);

// REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

constexpr bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

// Unicode's White_Space.
bool IsWhiteSpace(char32_t code_point);

// Length in bytes of the longest prefix of `text` that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

}  // namespace coppice
