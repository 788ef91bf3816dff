// Text of error messages: names that come from a file, made fit for one line of a terminal.
// Layer: model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace coppice {

// The name in double quotes; bytes outside printable ASCII as \xNN, anything past 96 bytes as "...".
std::string Quoted(std::string_view name);

// "[49152, 576]".
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace coppice
