#include "tokenizer/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

std::string MapCharacters(std::string_view text, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    if (c.kind == Utf8Kind::kValid) {
      AppendUtf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c.code_point))), &out);
    } else {
      out += text.substr(0, c.length);
    }
    text.remove_prefix(c.length);
  }
  return out;
}

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// Length in bytes of the last character of `text`, which is not empty.
size_t LastLength(std::string_view text) {
  size_t length = 1;
  while (length < 4 && length < text.size() && IsContinuation(text[text.size() - length])) ++length;
  return DecodeUtf8(text.substr(text.size() - length)).length == length ? length : 1;
}

}  // namespace

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    const size_t length = DecodeUtf8(text).length;
    characters.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return characters;
}

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(DecodeUtf8(text).length);
  return count;
}

size_t FindText(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  // Two-way search: linear, where std::string_view::find is quadratic at worst.
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

bool IsSpaceCharacter(std::string_view character) {
  const char32_t c = DecodeUtf8(character).code_point;
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view Strip(std::string_view text, std::string_view characters, StripSides sides) {
  std::vector<std::string_view> set = Characters(characters);
  std::sort(set.begin(), set.end());
  const auto strips = [&](std::string_view character) {
    return set.empty() ? IsSpaceCharacter(character) : std::binary_search(set.begin(), set.end(), character);
  };
  while (sides.left && !text.empty()) {
    const size_t length = DecodeUtf8(text).length;
    if (!strips(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (sides.right && !text.empty()) {
    const size_t length = LastLength(text);
    if (!strips(text.substr(text.size() - length))) break;
    text.remove_suffix(length);
  }
  return text;
}

std::string ToUpper(std::string_view text) { return MapCharacters(text, utf8proc_toupper); }
std::string ToLower(std::string_view text) { return MapCharacters(text, utf8proc_tolower); }

}  // namespace coppice::jinja
