// Lines that a person types, with editing and a history where the input is a terminal, else as they come. Layer: cli.
#pragma once

#include <optional>
#include <string>

namespace coppice::cli {

class LineEditor {
 public:
  LineEditor();

  // Whether the input is a terminal, and the output the one that echoes it.
  bool is_terminal() const { return terminal_; }
  // The next line, without its line break; none at the end of the input. `prompt` stands before it on a terminal. Earlier lines are
  // found again by the arrow keys, in this process alone: nothing is written to a file.
  std::optional<std::string> Read(const std::string& prompt);

 private:
  const bool terminal_;
};

}  // namespace coppice::cli
