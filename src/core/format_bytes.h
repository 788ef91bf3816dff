// Sizes in messages and tables. Layer: core.
#pragma once

#include <string>

namespace coppice {

// "512 B", "1.5 GiB": at most 1,023 of a unit, with one decimal from KiB on.
std::string FormatBytes(double bytes);

}  // namespace coppice
