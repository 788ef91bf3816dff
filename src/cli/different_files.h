// Rules for the files of a command. Layer: cli.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coppice/core/status.h"

namespace CLI {
class App;
}

namespace coppice::cli {

// Paths behind their names in messages; empty ones are none.
using NamedFiles = std::vector<std::pair<const char*, std::string>>;

// INVALID_ARGUMENT if two of the files are one. They need not exist yet.
Status CheckDifferentFiles(const NamedFiles& files);
// Of those of the command line's --trace and --record, too.
Status CheckDifferentFiles(const CLI::App& command, NamedFiles files);

}  // namespace coppice::cli
