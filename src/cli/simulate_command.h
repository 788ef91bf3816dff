// `coppice simulate`: what servers would make of a trace of requests, without them. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddSimulateCommand(CLI::App& app);

}  // namespace coppice::cli
