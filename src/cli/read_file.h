// A whole file as bytes. Layer: cli.
#pragma once

#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice::cli {

// Of "-", all of standard input, which has a content once: INVALID_ARGUMENT for what asks for it again. NOT_FOUND names the path,
// the system's reason and the option that gave it; INVALID_ARGUMENT where there is more than 256 MiB, such as in a device without
// an end.
Result<std::string> ReadFile(const std::string& path, std::string_view option);
Result<std::string> ReadStandardInput();

}  // namespace coppice::cli
