#include "core/quoted.h"

#include <cstdint>

namespace coppice {

std::string Quoted(std::string_view name) {
  constexpr size_t kMaxShown = 96;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : name.substr(0, kMaxShown)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
    }
  }
  if (name.size() > kMaxShown) text += "...";
  return text + '"';
}

}  // namespace coppice
