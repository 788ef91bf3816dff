#include "cli/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_tree.h"
#include "cli/help.h"
#include "cli/parsed_option.h"
#include "cli/terminal.h"
#include "core/quoted.h"

namespace coppice::cli {
namespace {

// The command that the line names, as far as it was understood.
const CLI::App& Deepest(const CLI::App& app) {
  const std::vector<const CLI::App*> below = app.get_subcommands([](const CLI::App* sub) { return sub->parsed(); });
  return below.empty() ? app : Deepest(*below.front());
}

// The error for `word`, which is no option, command or argument, with the nearest names.
std::string UnknownWord(const CommandInfo& command, const std::string& word) {
  if (word.starts_with('-') && word.size() > 1) {
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> names;
    for (const OptionInfo& option : command.options) names.insert(names.end(), option.names.begin(), option.names.end());
    return fmt::format("{} is no option of {}{}", Quoted(name), command.invocation(), DidYouMean(name, names));
  }
  if (command.commands.empty()) return fmt::format("{} takes no argument {}", command.invocation(), Quoted(word));
  std::vector<std::string> names;
  for (const CommandInfo& below : command.commands) names.emplace_back(below.name());
  return fmt::format("{} is no command of {}{}", Quoted(word), command.invocation(), DidYouMean(word, names));
}

}  // namespace

void UseHelp(CLI::App& program) {
  program.formatter(std::make_shared<CLI::FormatterLambda>([](const CLI::App* app, std::string /*name*/, CLI::AppFormatMode mode) {
    return FormatHelp(Describe(*app), TerminalColumns(STDOUT_FILENO), mode == CLI::AppFormatMode::All);
  }));
  program.set_help_flag("-h,--help", "Print this help");
  program.set_help_all_flag("--help-all", "Print all options, those for experts too");
}

void RefuseNan(CLI::App& program) {
  for (CLI::Option* const option : program.get_options({})) {
    if (option->get_type_name().starts_with("FLOAT")) option->check(AnyNumber());
  }
  for (CLI::App* const command : program.get_subcommands({})) RefuseNan(*command);
}

Status CommandLineError(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& app = Deepest(program);
  const CommandInfo command = Describe(app);
  const std::string see = fmt::format("see {} --help", command.invocation());
  // A value that is wrong was found before what follows it was looked at.
  const bool is_value = dynamic_cast<const CLI::ConversionError*>(&error) || dynamic_cast<const CLI::ValidationError*>(&error) ||
                        dynamic_cast<const CLI::ArgumentMismatch*>(&error);
  const std::vector<std::string> rest = app.remaining();
  if (!is_value && !rest.empty()) {
    const auto option = std::ranges::find_if(rest, [](const std::string& word) { return word.starts_with('-') && word != "--"; });
    return InvalidArgument(fmt::format("{}; {}", UnknownWord(command, option == rest.end() ? rest.front() : *option), see));
  }
  if (!command.commands.empty() && dynamic_cast<const CLI::RequiredError*>(&error))
    return InvalidArgument(fmt::format("no command given; {}", see));
  return InvalidArgument(fmt::format("{}; {}", error.what(), see));
}

}  // namespace coppice::cli
