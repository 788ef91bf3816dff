// The units of deterministic mode (plan.h says how plans use them), apart so that device code may include them. Layer: attention,
// private.
#pragma once

#include <cstdint>

namespace coppice::attention {

inline constexpr int32_t kDeterministicUnit = 512;
inline constexpr int32_t kDeterministicSuperblock = 8 * kDeterministicUnit;

}  // namespace coppice::attention
