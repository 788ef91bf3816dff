// `coppice bench update`: how long an update of all weights takes, beside loading them and beside a copy of as many bytes. Layer:
// cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchUpdateCommand(CLI::App& bench);

}  // namespace coppice::cli
