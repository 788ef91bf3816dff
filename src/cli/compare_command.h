// `coppice compare-logprobs`: a rollout's log-probabilities beside a trainer's. docs/trainers.md, "Parity", has the formats.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddCompareCommand(CLI::App& app);

}  // namespace coppice::cli
