#include "cli/help_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/help.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/quoted.h"

namespace coppice::cli {
namespace {

struct HelpOptions {
  std::vector<std::string> words;  // of the command; empty: the program
  bool all = false, man = false, markdown = false;
};

Result<std::string> HelpText(const CommandInfo& program, const HelpOptions& options) {
  if (options.man) return ManPage(program, COPPICE_VERSION);
  if (options.markdown) return MarkdownReference(program);
  const std::string path = fmt::format("{}", fmt::join(options.words, " "));
  std::vector<std::string> paths;
  for (const CommandInfo* command : AllCommands(program)) {
    if (command->path == path) return FormatHelp(*command, TerminalColumns(STDOUT_FILENO), options.all);
    paths.push_back(command->path);
  }
  return InvalidArgument(fmt::format("there is no command {}{}; see coppice --help", Quoted(path), DidYouMean(path, paths)));
}

Result<ExitCode> PrintText(const Result<std::string>& text) {
  COPPICE_RETURN_IF_ERROR(text.status());
  COPPICE_RETURN_IF_ERROR(Print(*text));
  return ExitCode::kOk;
}

}  // namespace

Command AddHelpCommand(CLI::App& program) {
  const auto options = std::make_shared<HelpOptions>();
  CLI::App* command = program.add_subcommand("help", "What a command does and takes: coppice help bench decode");
  command->add_option("command", options->words, "The command's words (default: the list of commands)");
  command->add_flag("--all", options->all, "Options for experts too, as --help-all");
  CLI::Option* man = command->add_flag("--man", options->man, "Print a man page of all commands");
  command->add_flag("--markdown", options->markdown, "Print a reference of all commands, as docs/cli.md has it")->excludes(man);
  return {command, [options, &program] { return PrintText(HelpText(Describe(program), *options)); }};
}

Command AddCompletionCommand(CLI::App& program) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command =
      program.add_subcommand("completion", "Print what lets a shell complete the command line: source <(coppice completion bash)");
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return {command, [shell, &program] { return PrintText(CompletionScript(Describe(program), *shell)); }};
}

}  // namespace coppice::cli
