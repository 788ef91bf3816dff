// Integer arithmetic that every layer needs, on the host and in kernels. Always inlined: code compiled for one instruction set uses
// it too, and a copy of its own could be linked into code for other CPUs. Layer: core.
#pragma once

#include <concepts>
#include <type_traits>

namespace coppice {

// T has every value of the integers A and B: int64_t those of int32_t, int32_t those of uint16_t, size_t none below zero.
template <class T, class... Integers>
concept HasValuesOf =
    ((std::is_signed_v<T> == std::is_signed_v<Integers> || (std::is_signed_v<T> && sizeof(T) > sizeof(Integers))) && ...);

// a / b rounded up. REQUIRES: a >= 0, b > 0, and a + b - 1 is a T.
template <std::integral A, std::integral B, HasValuesOf<A, B> T = std::common_type_t<A, B>>
[[gnu::always_inline]] constexpr T CeilDiv(A a, B b) {
  return (a + b - 1) / b;
}

// The least multiple of `step` that is at least `value`. REQUIRES: value >= 0, step > 0, and value + step - 1 is a T.
template <std::integral A, std::integral B, HasValuesOf<A, B> T = std::common_type_t<A, B>>
[[gnu::always_inline]] constexpr T RoundUp(A value, B step) {
  return CeilDiv(value, step) * step;
}

}  // namespace coppice
