#include "model/error_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace coppice {

std::string Quoted(std::string_view name) {
  constexpr size_t kMaxShown = 96;
  std::string text = "\"";
  for (const char c : name.substr(0, kMaxShown)) {
    if (c >= 0x20 && c < 0x7f) {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (name.size() > kMaxShown) text += "...";
  return text + '"';
}

std::string ShapeText(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace coppice
