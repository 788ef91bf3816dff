// Options of a command from a file, for those that neither the command line nor the environment gave.
// Layer: cli.
#pragma once

#include <string>

#include "coppice/core/status.h"

namespace CLI {
class App;
}

namespace coppice::cli {

// Lines `option = value` in TOML; `option` is the long name without its dashes, a flag's value is true or false. To be called when
// the command line is parsed. Errors name the file and the option.
Status ApplyConfigFile(CLI::App& command, const std::string& path);

}  // namespace coppice::cli
