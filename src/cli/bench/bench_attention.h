// `coppice bench attention`: time, bytes, FLOPs and percent of the roofline of one attention layer over prefix trees, as planned,
// all shared, `store` and `none`, interleaved. `coppice bench calibrate`: the constants of the planner's cost model, measured here.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchAttentionCommand(CLI::App& bench);
Command AddBenchCalibrateCommand(CLI::App& bench);

}  // namespace coppice::cli
