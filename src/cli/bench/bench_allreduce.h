// `coppice bench allreduce`: sums over a model's ranks on GPUs, by kernels of ours and by NCCL, beside what their bytes take.
// Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchAllReduceCommand(CLI::App& bench);

}  // namespace coppice::cli
