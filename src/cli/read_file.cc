#include "cli/read_file.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace coppice::cli {

namespace {

constexpr size_t kMostBytes = size_t{256} << 20;

Result<std::string> ReadAll(std::FILE* file, const std::string& name, std::string_view option) {
  // In pieces: a pipe has no size. A folder opens, and fails at the first read.
  std::string bytes;
  std::array<char, 1 << 16> piece;
  while (const size_t count = std::fread(piece.data(), 1, piece.size(), file)) {
    if (bytes.size() + count > kMostBytes)
      return InvalidArgument(fmt::format("{} has more than {} bytes; check {}", name, kMostBytes, option));
    bytes.append(piece.data(), count);
  }
  if (std::ferror(file)) return NotFound(fmt::format("cannot read {}: {}; check {}", name, std::strerror(errno), option));
  return bytes;
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, std::string_view option) {
  if (path == "-") {
    if (std::feof(stdin))
      return InvalidArgument(fmt::format("{} is - (standard input), which was read already; give a file", option));
    return ReadAll(stdin, "standard input", option);
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return NotFound(fmt::format("cannot read {}: {}; check {}", path, std::strerror(errno), option));
  return ReadAll(file.get(), path, option);
}

Result<std::string> ReadStandardInput() { return ReadFile("-", "what is piped in"); }

}  // namespace coppice::cli
