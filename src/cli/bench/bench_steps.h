// `coppice bench steps`: what a model's steps take beside their attention, for `coppice simulate`. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchStepsCommand(CLI::App& bench);

}  // namespace coppice::cli
