#include "tokenizer/utf8.h"

namespace coppice {

Utf8Char DecodeUtf8(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, Utf8Kind::kValid};

  // Unicode 15.0, table 3-7: the second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {U'\uFFFD', 1, Utf8Kind::kInvalid};
  }

  char32_t code_point = lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {U'\uFFFD', i, Utf8Kind::kIncomplete};
    if (byte(i) < low || byte(i) > high) return {U'\uFFFD', i, Utf8Kind::kInvalid};
    low = 0x80, high = 0xBF;
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  return {code_point, length, Utf8Kind::kValid};
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [out](char32_t bits) { out->push_back(static_cast<char>(bits)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Char c = DecodeUtf8(text.substr(position));
    if (c.kind != Utf8Kind::kValid) break;
    position += c.length;
  }
  return position;
}

}  // namespace coppice
