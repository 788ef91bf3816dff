#include "cli/read_file.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace coppice::cli {

Result<std::string> ReadFile(const std::string& path, std::string_view option) {
  const auto error = [&] { return NotFound(fmt::format("cannot read {}: {}; check {}", path, std::strerror(errno), option)); };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return error();
  // In pieces: a pipe has no size. A folder opens, and fails at the first read.
  std::string bytes;
  std::array<char, 1 << 16> piece;
  while (const size_t count = std::fread(piece.data(), 1, piece.size(), file.get())) bytes.append(piece.data(), count);
  if (std::ferror(file.get())) return error();
  return bytes;
}

}  // namespace coppice::cli
