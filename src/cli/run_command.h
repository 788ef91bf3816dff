// `coppice run`: many samples of one prompt, its KV stored once and read once per step (Hydragen section 3, Bifurcated section 4).
// Layer: cli.
#pragma once

#include "cli/command.h"
#include "cli/run_options.h"

namespace coppice::cli {

Result<ExitCode> Run(RunOptions options);
Command AddRunCommand(CLI::App& app);

}  // namespace coppice::cli
