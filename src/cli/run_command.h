// `coppice run`: many samples of one prompt, its KV stored once and read once per step (Hydragen section 3, Bifurcated section 4).
// Layer: cli.
#pragma once

#include <string>

#include "cli/command.h"
#include "cli/run_options.h"

namespace coppice::cli {

Result<ExitCode> Run(RunOptions options);
Command AddRunCommand(CLI::App& app);

// `given`, or the default model's place if that is empty. NOT_FOUND if there is nothing to open there.
Result<std::string> FindModel(const std::string& given);

}  // namespace coppice::cli
