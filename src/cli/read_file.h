// A whole file as bytes. Layer: cli.
#pragma once

#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice::cli {

// NOT_FOUND names the path, the system's reason and the option that gave it.
Result<std::string> ReadFile(const std::string& path, std::string_view option);

}  // namespace coppice::cli
