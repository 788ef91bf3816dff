// `coppice score`: a file of prompts with continuations in, their log-likelihoods out. docs/server.md, "Scores", has the formats.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddScoreCommand(CLI::App& app);

}  // namespace coppice::cli
