#include "cli/line_editor.h"

#include <editline/readline.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <iostream>
#include <memory>

namespace coppice::cli {

LineEditor::LineEditor() : terminal_(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
  if (!terminal_) return;
  std::setlocale(LC_CTYPE, "");  // what characters are
  rl_initialize();
}

std::optional<std::string> LineEditor::Read(const std::string& prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }
  rl_prep_terminal(1);  // readline does it after the prompt, so that Ctrl-D that comes in between would be a character
  const std::unique_ptr<char, decltype(&std::free)> line(readline(prompt.c_str()), std::free);
  if (!line) return std::nullopt;
  if (*line != '\0') add_history(line.get());
  return std::string(line.get());
}

}  // namespace coppice::cli
