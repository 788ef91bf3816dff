// `coppice inspect kernels`: which CPU kernels this machine runs for what, and why.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddInspectKernelsCommand(CLI::App& inspect);

}  // namespace coppice::cli
