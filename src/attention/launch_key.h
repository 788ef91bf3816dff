// The parts of launch keys: the one place that knows their bits. Layer: attention, private.
#pragma once

#include <cstdint>

#include "coppice/attention/attention.h"
#include "core/check.h"

namespace coppice::attention {

// Of one launch: the image of the plan that it reads, and which of the backend's launches it is.
constexpr LaunchKey LaunchKeyOf(uint8_t image, uint16_t launch) { return LaunchKey{uint64_t{launch} << 8 | image}; }

// Of two launches, one after the other.
inline LaunchKey LaunchKeyOfTwo(LaunchKey first, LaunchKey second) {
  const auto of_first = static_cast<uint64_t>(first), of_second = static_cast<uint64_t>(second);
  COPPICE_CHECK(of_first <= UINT32_MAX && of_second <= UINT32_MAX);  // each of one launch
  return LaunchKey{of_second << 32 | of_first};
}

}  // namespace coppice::attention
