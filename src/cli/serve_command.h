// `coppice serve`: an HTTP server over one engine. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddServeCommand(CLI::App& app);

}  // namespace coppice::cli
