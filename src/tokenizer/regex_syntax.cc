#include "tokenizer/regex_syntax.h"

#include <cctype>
#include <cstdint>

namespace coppice {
namespace {

// PCRE2's \s counts U+180E, which Unicode no longer does since 6.3; its \w lacks marks and connectors. Oniguruma's \w is what
// Unicode calls alphabetic (with letter numbers and circled letters), marks, digits, connectors, and of Latin-1 the other numbers
// too.
constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})"
    R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

std::string_view ClassOf(char escaped) {
  if (escaped == 's' || escaped == 'S') return kSpaces;
  if (escaped == 'w' || escaped == 'W') return kWord;
  return {};
}

}  // namespace

std::string OnigurumaPattern(std::string_view pattern) {
  std::string out = "(?m)";  // ^ and $ are of lines
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    const std::string_view meaning = ClassOf(escaped);
    const bool negated = escaped == 'S' || escaped == 'W';
    if (meaning.empty() || (negated && in_class)) {
      out.append({'\\', escaped});
    } else if (in_class) {
      out += meaning;
    } else {
      out.append(negated ? "[^" : "[").append(meaning).append("]");
    }
  }
  return out;
}

std::string LiteralPattern(std::string_view text) {
  std::string pattern;
  for (char c : text) {
    const bool plain = static_cast<uint8_t>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)) || c == ' ' || c == '\n';
    pattern.append(plain ? "" : "\\").push_back(c);
  }
  return pattern;
}

}  // namespace coppice
