#include "tokenizer/printable.h"

#include "tokenizer/utf8.h"

namespace coppice {

std::string Printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string printable;
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    const bool is_control = next.code_point < 0x20 || (next.code_point >= 0x7f && next.code_point < 0xa0);
    if (next.kind == Utf8Kind::kValid && !is_control) {
      printable += text.substr(0, next.length);
    } else {
      for (const char c : text.substr(0, next.length)) {
        const auto byte = static_cast<unsigned char>(c);
        printable += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      }
    }
    text.remove_prefix(next.length);
  }
  return printable;
}

}  // namespace coppice
