// `coppice explain`: what a file of requests stores, reads and takes, before it is run. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddExplainCommand(CLI::App& app);

}  // namespace coppice::cli
