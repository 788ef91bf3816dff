#include "cli/batch_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace coppice::cli {

Status CheckDifferentFiles(std::initializer_list<std::pair<const char*, std::string>> files) {
  for (auto a = files.begin(); a != files.end(); ++a) {
    for (auto b = a + 1; b != files.end(); ++b) {
      std::error_code ignored;
      if (a->second.empty() || b->second.empty()) continue;
      if (a->second == b->second || std::filesystem::equivalent(a->second, b->second, ignored))
        return InvalidArgument(fmt::format("{} and {} are the same file {}; give two", a->first, b->first, a->second));
    }
  }
  return OkStatus();
}

}  // namespace coppice::cli
