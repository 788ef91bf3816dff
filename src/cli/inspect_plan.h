// `coppice inspect plan`: the tree, each of the planner's decisions with its reason, bytes and FLOPs with and without sharing,
// predicted and measured time; of a tree given on the command line, or of a dumped plan.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddInspectPlanCommand(CLI::App& inspect);

}  // namespace coppice::cli
