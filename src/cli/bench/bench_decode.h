// `coppice bench decode`: decode speed and peak memory of a model over prompt lengths, sample counts and sharing modes,
// interleaved. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchDecodeCommand(CLI::App& bench);

}  // namespace coppice::cli
