// The commands `coppice help` and `coppice completion`. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

// They show all commands of `program`, those that are added later too.
Command AddHelpCommand(CLI::App& program);
Command AddCompletionCommand(CLI::App& program);

}  // namespace coppice::cli
