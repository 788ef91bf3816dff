// A subcommand of the program: where CLI11 notes that it was asked for, and its function.
// Layer: cli.
#pragma once

#include <functional>

#include "cli/exit_code.h"
#include "coppice/core/status.h"

namespace CLI {
class App;
}

namespace coppice::cli {

struct Command {
  const CLI::App* app = nullptr;
  std::function<Result<ExitCode>()> run;
  bool reads_trace = false;  // its --trace is a file that it reads, no trace of what it does
};

}  // namespace coppice::cli
