// `coppice inspect model`: what a model file holds, without loading its weights.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddInspectModelCommand(CLI::App& inspect);

}  // namespace coppice::cli
