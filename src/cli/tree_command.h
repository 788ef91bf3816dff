// `coppice tree`: a tree of samples that another program grows, a verb and a line of JSON each. docs/cli.md, "coppice tree", has
// the verbs. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddTreeCommand(CLI::App& app);

}  // namespace coppice::cli
