// `coppice pull` fetches a model into the folder of models; `coppice models` says what is there and what could be.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddPullCommand(CLI::App& app);
Command AddModelsCommand(CLI::App& app);

}  // namespace coppice::cli
