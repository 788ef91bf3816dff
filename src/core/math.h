// Integer arithmetic that every layer needs. Layer: core.
#pragma once

#include <concepts>

namespace coppice {

// a / b rounded up. REQUIRES: a >= 0, b > 0.
template <std::integral T>
constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

// The least multiple of `step` that is at least `value`. REQUIRES: value >= 0, step > 0.
template <std::integral T>
constexpr T RoundUp(T value, T step) {
  return CeilDiv(value, step) * step;
}

}  // namespace coppice
