// Text of error messages: names that come from a file, made fit for one line of a terminal.
// Layer: core.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace coppice {

// At most `max_bytes` of the text; bytes outside printable ASCII as \xNN, "..." for the rest.
std::string Printable(std::string_view text, size_t max_bytes);
// The name in double quotes; bytes outside printable ASCII as \xNN, anything past 96 bytes as "...".
std::string Quoted(std::string_view name);

}  // namespace coppice
