// Text of error messages: names (core/quoted.h) and shapes.
// Layer: model.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/quoted.h"

namespace coppice {

// "[49152, 576]".
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace coppice
