#include "tokenizer/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

std::string MapCharacters(std::string_view text, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  std::string out;
  for (std::string_view character : Characters(text)) {
    const Utf8Char c = DecodeUtf8(character);
    if (c.kind == Utf8Kind::kValid) {
      AppendUtf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c.code_point))), &out);
    } else {
      out += character;
    }
  }
  return out;
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

bool IsSpaceCharacter(std::string_view character) {
  const char32_t c = DecodeUtf8(character).code_point;
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view Strip(std::string_view text, std::string_view characters, StripSides sides) {
  const std::vector<std::string_view> set = Characters(characters);
  const auto strips = [&](std::string_view character) {
    return set.empty() ? IsSpaceCharacter(character) : std::find(set.begin(), set.end(), character) != set.end();
  };
  const std::vector<std::string_view> all = Characters(text);
  auto begin = all.begin(), end = all.end();
  if (sides.left) begin = std::find_if_not(begin, end, strips);
  if (sides.right) {
    while (begin != end && strips(*(end - 1))) --end;
  }
  if (begin == end) return {};
  const auto from = static_cast<size_t>(begin->data() - text.data());
  const auto to = static_cast<size_t>((end - 1)->data() + (end - 1)->size() - text.data());
  return text.substr(from, to - from);
}

std::string ToUpper(std::string_view text) { return MapCharacters(text, utf8proc_toupper); }
std::string ToLower(std::string_view text) { return MapCharacters(text, utf8proc_tolower); }

}  // namespace coppice::jinja
