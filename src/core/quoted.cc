#include "core/quoted.h"

#include <cstdint>

namespace coppice {

std::string Printable(std::string_view text, size_t max_bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
    }
  }
  return text.size() > max_bytes ? shown + "..." : shown;
}

std::string Quoted(std::string_view name) { return '"' + Printable(name, 96) + '"'; }

}  // namespace coppice
