#include "core/format_bytes.h"

#include <array>
#include <cstdio>

namespace coppice {

std::string FormatBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  char text[48];
  const int length = std::snprintf(text, sizeof(text), "%.*f %s", unit == 0 ? 0 : 1, bytes, kUnits[unit]);
  return {text, static_cast<size_t>(length)};
}

}  // namespace coppice
