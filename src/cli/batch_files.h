// What the files of a command must keep to that goes on with a job. Layer: cli.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "coppice/core/status.h"

namespace coppice::cli {

// INVALID_ARGUMENT if two of the files, each behind its name in messages, are one. Empty paths are none.
Status CheckDifferentFiles(std::initializer_list<std::pair<const char*, std::string>> files);

}  // namespace coppice::cli
