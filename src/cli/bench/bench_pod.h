// `coppice bench pod`: POD-Attention's experiments on hybrid batches, a chunk of a prompt beside requests that decode, in one
// attention layer. docs/benchmarks.md has the sets and columns. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchPodCommand(CLI::App& bench);

}  // namespace coppice::cli
