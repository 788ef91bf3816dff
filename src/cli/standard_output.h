// A command's output, and its file descriptors. Text that cannot be written, to a full disk or a closed descriptor,
// is an error, never silence.
// Layer: cli.
#pragma once

#include <string_view>

#include "coppice/core/status.h"

namespace coppice::cli {

// Writes all of `text` to standard output at once. RESOURCE_EXHAUSTED or INTERNAL with the system's reason.
Status Print(std::string_view text);

// Opens what is closed of descriptors 0 to 2, so that no file of ours becomes one of them. Reading the input or writing the output
// fails then as before; what goes to stderr is lost. Called before anything else is opened.
void ReserveStandardDescriptors();

}  // namespace coppice::cli
