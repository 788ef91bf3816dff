#include "core/random_bytes.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "core/check.h"

namespace coppice {

void DrawRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t drawn = getrandom(bytes.data(), bytes.size(), 0);
    if (drawn < 0 && errno == EINTR) continue;
    COPPICE_CHECK(drawn > 0);  // Linux has had it since 3.17
    bytes = bytes.subspan(static_cast<size_t>(drawn));
  }
}

std::string RandomHex(size_t bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::vector<std::byte> drawn(bytes);
  DrawRandom(drawn);
  std::string hex;
  for (const std::byte byte : drawn) {
    hex += kDigits[std::to_integer<size_t>(byte >> 4)];
    hex += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return hex;
}

}  // namespace coppice
