#include "tokenizer/one_line.h"

#include "tokenizer/utf8.h"

namespace coppice {

std::string OneLine(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    const bool is_control = next.code_point < 0x20 || (next.code_point >= 0x7f && next.code_point < 0xa0);
    if (next.kind == Utf8Kind::kValid && !is_control) {
      line += text.substr(0, next.length);
    } else {
      for (const char c : text.substr(0, next.length)) {
        const auto byte = static_cast<unsigned char>(c);
        line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      }
    }
    text.remove_prefix(next.length);
  }
  return line;
}

}  // namespace coppice
