// `coppice eval`: accuracy, offline, in one or several sharing modes: sharing must change nothing (RelayAttention, table 3).
// Layer: cli.
#pragma once

#include <vector>

#include "cli/command.h"

namespace coppice::cli {

// perplexity, needle, choice and code.
std::vector<Command> AddEvalCommands(CLI::App& eval);

}  // namespace coppice::cli
