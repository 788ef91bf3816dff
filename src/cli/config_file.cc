#include "cli/config_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "cli/read_file.h"
#include "core/check.h"

namespace coppice::cli {
namespace {

// The option that a line names; null: none that a file may give.
CLI::Option* FindOption(CLI::App& command, const CLI::ConfigItem& item) {
  const bool named =
      item.parents.empty() && item.name != "config" && item.name != "help" && item.name != "help-all" && item.name.size() > 1;
  return named ? command.get_option_no_throw("--" + item.name) : nullptr;
}

void Give(const CLI::ConfigItem& item, const CLI::Config& format, CLI::Option* option) {
  if (option->get_expected_min() == 0) {  // a flag
    option->add_result(option->get_flag_value(item.name, format.to_flag(item)));
  } else {
    option->add_result(item.inputs);
  }
  option->run_callback();
}

}  // namespace

Status ApplyConfigFile(CLI::App& command, const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, "--config"));
  const CLI::ConfigTOML format;
  std::string at;
  try {
    std::istringstream stream(text);
    const std::vector<CLI::ConfigItem> items = format.from_config(stream);
    std::set<std::string> seen;
    for (const CLI::ConfigItem& item : items) {
      at = item.fullname();
      CLI::Option* const option = FindOption(command, item);
      if (option == nullptr)
        return InvalidArgument(fmt::format("{}: {} is no option of coppice {} that a file may give", path, at, command.get_name()));
      if (!seen.insert(item.name).second) return InvalidArgument(fmt::format("{}: {} stands there twice", path, at));
      if (option->count() == 0) Give(item, format, option);
    }
  } catch (const CLI::Error& error) {
    return InvalidArgument(fmt::format("{}: {}: {}", path, at, error.what()));
  }
  return OkStatus();
}

}  // namespace coppice::cli
