// The command `coppice chat`: a conversation with a model, on a terminal or line by line from a file. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddChatCommand(CLI::App& app);

}  // namespace coppice::cli
