#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/terminal.h"

namespace coppice::cli {
namespace {

constexpr int kHelpColumn = 26;      // where descriptions begin
constexpr int kWidest = 100;         // longer lines are hard to read
constexpr size_t kMostChoices = 48;  // columns of an option's values; where there are more, its description names them

// A row of two columns; the first one on a line of its own where it is too long.
std::string Row(const std::string& left, const std::string& right, int columns) {
  std::string text = "  " + left;
  const std::vector<std::string> lines = Wrap(right, columns - kHelpColumn);
  const bool fits = DisplayColumns(text) + 2 <= kHelpColumn;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i == 0 && fits) {
      text += std::string(kHelpColumn - DisplayColumns(text), ' ') + lines[i];
    } else {
      text += "\n" + std::string(kHelpColumn, ' ') + lines[i];
    }
  }
  return text + "\n";
}

std::string Paragraph(const std::string& text, int columns) {
  return text.empty() ? "" : fmt::format("{}\n\n", fmt::join(Wrap(text, columns), "\n"));
}

// "-n, --samples N".
std::string NamesOf(const OptionInfo& option) {
  const std::string choices = fmt::format("{}", fmt::join(option.choices, "|"));
  const std::string value = choices.empty() || choices.size() > kMostChoices ? option.value : choices;
  return fmt::format("{}{}{}", fmt::join(option.names, ", "), value.empty() ? "" : " ", value);
}

std::string UsageOf(const CommandInfo& command) {
  std::string usage = command.invocation();
  if (!command.options.empty()) usage += " [OPTIONS]";
  for (const OptionInfo& argument : command.arguments) {
    usage += argument.required ? " " + argument.names.front() : " [" + argument.names.front() + "]";
  }
  return command.commands.empty() ? usage : usage + " COMMAND";
}

// `text` as man(7) prints it.
std::string Troff(const std::string& text) {
  std::string troff;
  for (const char c : text) {
    if (c == '\\') {
      troff += "\\e";
    } else if (c == '-') {
      troff += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (troff.empty() || troff.back() == '\n')) troff += "\\&";
      troff += c;
    }
  }
  return troff;
}

// In a cell of a table.
std::string Markdown(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '\\' || c == '|' || c == '<' || c == '*' || c == '_' || c == '[') cell += '\\';
    cell += c == '\n' ? ' ' : c;
  }
  return cell;
}

// In single quotes of the three shells.
std::string Quoted(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c == '\n' ? ' ' : c;
  }
  return "'" + quoted + "'";
}

// Completions of a command: its options and the commands below it.
std::vector<std::string> WordsOf(const CommandInfo& command) {
  std::vector<std::string> words;
  for (const CommandInfo& below : command.commands) words.emplace_back(below.name());
  for (const OptionInfo& option : command.options) words.insert(words.end(), option.names.begin(), option.names.end());
  return words;
}

// Arms of a `case` that finds out which command the words so far name, as $where.
std::string FindCommand(const CommandInfo& program) {
  std::vector<std::string> arms;
  for (const CommandInfo* command : AllCommands(program)) {
    if (command->path.empty()) continue;
    arms.push_back(fmt::format("\"{}\"", command->path.find(' ') == std::string::npos ? " " + command->path : command->path));
  }
  return fmt::format(
      "    case \"$where $word\" in\n"
      "      {}) where=\"${{where:+$where }}$word\" ;;\n"
      "    esac\n",
      fmt::join(arms, "|"));
}

std::string BashCompletion(const CommandInfo& program) {
  std::string text =
      "# Completion of coppice for bash, made by `coppice completion bash`.\n"
      "_coppice() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} where= candidates= word\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n" +
      FindCommand(program) +
      "  done\n"
      "  case \"$where\" in\n";
  std::string values;
  for (const CommandInfo* command : AllCommands(program)) {
    text += fmt::format("    \"{}\") candidates=\"{}\" ;;\n", command->path, fmt::join(WordsOf(*command), " "));
    std::vector<std::string> arms;
    for (const OptionInfo& option : command->options) {
      for (const std::string& name : option.names) {
        const std::string arm = fmt::format("\"{} {}\"", command->path, name);
        if (!option.choices.empty()) {
          values += fmt::format("    {}) candidates=\"{}\" ;;\n", arm, fmt::join(option.choices, " "));
        } else if (!option.value.empty()) {
          arms.push_back(arm);
        }
      }
    }
    if (!arms.empty()) values += fmt::format("    {}) candidates= ;;\n", fmt::join(arms, "|"));
  }
  return text +
         "  esac\n"
         "  case \"$where $before\" in  # options that want a value: other values are files\n" +
         values +
         "  esac\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$candidates\" -- \"$current\")\n"
         "}\n"
         "complete -o default -F _coppice coppice\n";
}

std::string ZshCompletion(const CommandInfo& program) {
  std::string text =
      "#compdef coppice\n"
      "# Completion of coppice for zsh, made by `coppice completion zsh`.\n"
      "_coppice() {\n"
      "  local where= word\n"
      "  local -a options commands\n"
      "  for word in \"${(@)words[2,CURRENT-1]}\"; do\n" +
      FindCommand(program) +
      "  done\n"
      "  case \"$where\" in\n";
  const auto described = [](const std::string& name, const std::string& help) {
    std::string escaped;
    for (const char c : name) escaped += c == ':' ? std::string("\\:") : std::string(1, c);
    return Quoted(escaped + ":" + help);
  };
  for (const CommandInfo* command : AllCommands(program)) {
    std::vector<std::string> options, commands;
    for (const OptionInfo& option : command->options) {
      for (const std::string& name : option.names) options.push_back(described(name, option.help));
    }
    for (const CommandInfo& below : command->commands) commands.push_back(described(std::string(below.name()), below.help));
    text += fmt::format("    \"{}\")\n      options=({})\n      commands=({})\n      ;;\n", command->path,
                        fmt::join(options, "\n               "), fmt::join(commands, "\n                "));
  }
  return text +
         "  esac\n"
         "  if [[ $words[CURRENT] == -* ]]; then\n"
         "    _describe -o option options\n"
         "  elif (( $#commands )); then\n"
         "    _describe command commands\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "if [[ $funcstack[1] == _coppice ]]; then _coppice \"$@\"; else compdef _coppice coppice; fi\n";
}

// The condition under which fish completes something of a command: all its words were seen.
std::string SeenInFish(const std::string& path) {
  if (path.empty()) return "__fish_use_subcommand";
  std::string condition;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(' ', begin), path.size());
    if (begin > 0) condition += "; and ";
    condition += "__fish_seen_subcommand_from " + path.substr(begin, end - begin);
    begin = end + 1;
  }
  return condition;
}

std::string FishCompletion(const CommandInfo& program) {
  std::string text = "# Completion of coppice for fish, made by `coppice completion fish`.\n";
  for (const CommandInfo* command : AllCommands(program)) {
    const std::string seen = SeenInFish(command->path);
    for (const CommandInfo& below : command->commands) {
      text += fmt::format("complete -c coppice -f -n '{}' -a {} -d {}\n", seen, below.name(), Quoted(below.help));
    }
    for (const OptionInfo& option : command->options) {
      text += fmt::format("complete -c coppice -n '{}'", seen);
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.value.empty()) text += " -r";
      if (!option.choices.empty()) text += fmt::format(" -f -a '{}'", fmt::join(option.choices, " "));
      text += fmt::format(" -d {}\n", Quoted(option.help));
    }
  }
  return text;
}

// Additional, missing and other characters, and neighbours that are exchanged, from one to the other (optimal string alignment).
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string FormatHelp(const CommandInfo& command, int columns, bool all) {
  columns = std::min(columns, kWidest);
  std::string text = Paragraph(command.help, columns) + Paragraph("Usage: " + UsageOf(command), columns);
  if (!command.arguments.empty()) text += "Arguments:\n";
  for (const OptionInfo& argument : command.arguments) text += Row(argument.names.front(), argument.help, columns);
  if (!command.arguments.empty()) text += "\n";
  if (!command.commands.empty()) text += "Commands:\n";
  for (const CommandInfo* below : AllCommands(command)) {
    const bool is_direct = below->path.find(' ', command.path.empty() ? 0 : command.path.size() + 1) == std::string::npos;
    if (below == &command || (!all && !is_direct)) continue;
    text += Row(command.path.empty() ? below->path : below->path.substr(command.path.size() + 1), below->help, columns);
  }
  if (!command.commands.empty()) text += "\n";
  std::vector<std::string> hidden;
  for (const std::string& group : GroupsOf(command)) {
    if (!all && IsForExperts(group)) {
      hidden.push_back(group);
      continue;
    }
    text += group + ":\n";
    for (const OptionInfo& option : command.options) {
      if (option.group == group) text += Row(NamesOf(option), option.help, columns);
    }
    text += "\n";
  }
  if (!hidden.empty()) text += Paragraph(fmt::format("More with --help-all: {}.", fmt::join(hidden, "; ")), columns);
  text += Paragraph(command.footer, columns);
  text.pop_back();  // the last empty line
  return text;
}

std::string ManPage(const CommandInfo& program, const std::string& version) {
  std::string text = fmt::format(
      ".TH COPPICE 1 \"\" \"coppice {}\" \"User Commands\"\n"
      ".SH NAME\ncoppice \\- {}\n.SH SYNOPSIS\n.B coppice\nCOMMAND [OPTIONS]\n",
      version, Troff(program.help.substr(program.help.find(": ") + 2)));
  for (const CommandInfo* command : AllCommands(program)) {
    if (command->path.empty()) {
      text += ".SH OPTIONS\n";
    } else {
      text +=
          fmt::format(".SH \"{}\"\n{}\n.PP\n.B {}\n", Troff(command->invocation()), Troff(command->help), Troff(UsageOf(*command)));
    }
    for (const OptionInfo& argument : command->arguments)
      text += fmt::format(".TP\n.B {}\n{}\n", argument.names.front(), Troff(argument.help));
    for (const std::string& group : GroupsOf(*command)) {
      text += fmt::format(".SS \"{}\"\n", Troff(group));
      for (const OptionInfo& option : command->options) {
        if (option.group == group) text += fmt::format(".TP\n.B {}\n{}\n", Troff(NamesOf(option)), Troff(option.help));
      }
    }
    if (!command->footer.empty()) text += fmt::format(".PP\n{}\n", Troff(command->footer));
  }
  return text;
}

std::string MarkdownReference(const CommandInfo& program) {
  std::string text;
  for (const CommandInfo* command : AllCommands(program)) {
    if (command->path.empty() || !command->commands.empty()) continue;
    text +=
        fmt::format("### `{}`\n\n{}.\n\n```text\n{}\n```\n\n", command->invocation(), Markdown(command->help), UsageOf(*command));
    if (!command->arguments.empty()) text += "| argument | meaning |\n|---|---|\n";
    for (const OptionInfo& argument : command->arguments)
      text += fmt::format("| `{}` | {} |\n", argument.names.front(), Markdown(argument.help));
    if (!command->arguments.empty()) text += "\n";
    for (const std::string& group : GroupsOf(*command)) {
      text += fmt::format("| {} | |\n|---|---|\n", group);
      for (const OptionInfo& option : command->options) {
        if (option.group != group) continue;
        std::string names = NamesOf(option);
        for (size_t bar = names.find('|'); bar != std::string::npos; bar = names.find('|', bar + 2)) names.insert(bar, "\\");
        text += fmt::format("| `{}` | {} |\n", names, Markdown(option.help));
      }
      text += "\n";
    }
    if (!command->footer.empty()) text += Markdown(command->footer) + "\n\n";
  }
  text.pop_back();
  return text;
}

Result<std::string> CompletionScript(const CommandInfo& program, const std::string& shell) {
  if (shell == "bash") return BashCompletion(program);
  if (shell == "zsh") return ZshCompletion(program);
  if (shell == "fish") return FishCompletion(program);
  return InvalidArgument(fmt::format("there is no completion for {}; expected bash, zsh or fish", shell));
}

std::string Nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string nearest;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  if (!nearest.empty()) return nearest;
  const auto longer =
      std::ranges::find_if(candidates, [&](const std::string& c) { return word.size() > 2 && c.starts_with(word); });
  return longer == candidates.end() ? "" : *longer;
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(word, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

}  // namespace coppice::cli
