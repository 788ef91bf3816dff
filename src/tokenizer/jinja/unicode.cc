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

// CN, which is 0, for invalid bytes.
utf8proc_category_t Category(std::string_view character) {
  const Utf8Char c = DecodeUtf8(character);
  return c.kind == Utf8Kind::kValid ? utf8proc_category(static_cast<utf8proc_int32_t>(c.code_point)) : UTF8PROC_CATEGORY_CN;
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

std::string Repeated(std::string_view unit, size_t count) {
  const size_t size = unit.size() * count;
  std::string out;
  if (size == 0) return out;
  out.reserve(size);
  out = unit;
  while (out.size() < size) out.append(out, 0, std::min(out.size(), size - out.size()));
  return out;
}

bool IsSpaceCharacter(std::string_view character) {
  const char32_t c = DecodeUtf8(character).code_point;
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsUpperCharacter(std::string_view character) { return Category(character) == UTF8PROC_CATEGORY_LU; }
bool IsLowerCharacter(std::string_view character) { return Category(character) == UTF8PROC_CATEGORY_LL; }

bool IsLetterCharacter(std::string_view character) {
  const utf8proc_category_t category = Category(character);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimalCharacter(std::string_view character) { return Category(character) == UTF8PROC_CATEGORY_ND; }

bool IsDigitCharacter(std::string_view character) {
  const char32_t c = DecodeUtf8(character).code_point;
  return IsDecimalCharacter(character) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089);
}

bool IsNumericCharacter(std::string_view character) {
  const utf8proc_category_t category = Category(character);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsWordCharacter(std::string_view character) {
  return character == "_" || IsLetterCharacter(character) || IsNumericCharacter(character);
}

bool IsAllOfCase(std::string_view text, bool (*is)(std::string_view), bool (*is_other)(std::string_view)) {
  bool found = false;
  for (std::string_view character : Characters(text)) {
    if (is_other(character) || Category(character) == UTF8PROC_CATEGORY_LT) return false;
    found |= is(character);
  }
  return found;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(at));
    const char32_t x = c.kind == Utf8Kind::kValid ? c.code_point : U'\uFFFD';
    const size_t end = at;
    at += c.length;
    const bool breaks = (x >= 0x0A && x <= 0x0D) || (x >= 0x1C && x <= 0x1E) || x == 0x85 || x == 0x2028 || x == 0x2029;
    if (!breaks) continue;
    if (x == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
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
