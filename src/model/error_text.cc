#include "model/error_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace coppice {

std::string ShapeText(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace coppice
