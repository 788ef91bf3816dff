#include "cli/command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

namespace coppice::cli {
namespace {

std::string PathOf(const CLI::App& app) {
  if (app.get_parent() == nullptr) return "";
  const std::string parent = PathOf(*app.get_parent());
  return parent.empty() ? app.get_name() : parent + " " + app.get_name();
}

// CLI11's name of a type: "INT:INT in [1 - 256]", "TEXT:{cpu,cuda}".
void TakeType(const std::string& type, OptionInfo* info) {
  const size_t colon = std::min(type.find(':'), type.size());
  const std::string base = type.substr(0, colon), rest = type.substr(std::min(colon + 1, type.size()));
  if (rest.starts_with('{')) {
    std::istringstream words(rest.substr(1, rest.find('}') - 1));
    for (std::string word; std::getline(words, word, ',');) info->choices.push_back(word);
  }
  info->value = rest.starts_with("SIZE")          ? "SIZE"
                : base == "INT" || base == "UINT" ? "N"
                : base == "FLOAT"                 ? "X"
                : base.empty()                    ? "TEXT"
                                                  : base;
}

OptionInfo DescribeOption(const CLI::Option& option) {
  OptionInfo info{.help = option.get_description(), .group = option.get_group(), .required = option.get_required()};
  if (option.get_positional()) {
    info.names = {option.get_single_name()};
  } else {
    for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  }
  if (option.get_expected_min() > 0) TakeType(option.get_type_name(), &info);
  const std::string& value = option.get_default_str();
  if (!value.empty() && info.help.find("default") == std::string::npos) info.help += " (default " + value + ")";
  return info;
}

void AppendAll(const CommandInfo& command, std::vector<const CommandInfo*>* all) {
  all->push_back(&command);
  for (const CommandInfo& below : command.commands) AppendAll(below, all);
}

}  // namespace

bool IsForExperts(std::string_view group) {
  const std::string_view groups[] = {kBatchingGroup, kDraftGroup, kLimitsGroup, kKeptGroup, kMeasuringGroup};
  return std::ranges::find(groups, group) != std::end(groups);
}

CommandInfo Describe(const CLI::App& app) {
  CommandInfo info{.path = PathOf(app), .help = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options({})) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? info.arguments : info.options).push_back(DescribeOption(*option));
  }
  for (const CLI::App* below : app.get_subcommands({})) info.commands.push_back(Describe(*below));
  return info;
}

std::vector<const CommandInfo*> AllCommands(const CommandInfo& command) {
  std::vector<const CommandInfo*> all;
  AppendAll(command, &all);
  return all;
}

std::vector<std::string> GroupsOf(const CommandInfo& command) {
  // The options of every command, --help, are the first ones of CLI11 and the last ones here.
  std::vector<std::string> groups;
  for (const OptionInfo& option : command.options) {
    if (std::ranges::find(groups, option.group) == groups.end()) groups.push_back(option.group);
  }
  std::stable_partition(groups.begin(), groups.end(), [](const std::string& group) { return !IsForExperts(group); });
  const auto last_for_all = std::ranges::find_if(groups, [](const std::string& group) { return IsForExperts(group); });
  if (!groups.empty()) std::rotate(groups.begin(), groups.begin() + 1, last_for_all);
  return groups;
}

}  // namespace coppice::cli
