#include "cli/different_files.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

namespace coppice::cli {
namespace {

// Two paths of a file that does not exist yet are one where they lead to one name.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || std::filesystem::equivalent(a, b, ignored) ||
         std::filesystem::weakly_canonical(std::filesystem::absolute(a, ignored), ignored) ==
             std::filesystem::weakly_canonical(std::filesystem::absolute(b, ignored), ignored);
}

}  // namespace

Status CheckDifferentFiles(const CLI::App& command, NamedFiles files) {
  for (const char* const name : {"--trace", "--record"}) {
    if (const CLI::Option* const option = command.get_option(name); !option->empty())
      files.emplace_back(name, option->as<std::string>());
  }
  return CheckDifferentFiles(files);
}

Status CheckDifferentFiles(const NamedFiles& files) {
  for (auto a = files.begin(); a != files.end(); ++a) {
    for (auto b = a + 1; b != files.end(); ++b) {
      if (a->second.empty() || b->second.empty()) continue;
      if (IsSameFile(a->second, b->second))
        return InvalidArgument(fmt::format("{} and {} are the same file {}; give two", a->first, b->first, a->second));
    }
  }
  return OkStatus();
}

}  // namespace coppice::cli
