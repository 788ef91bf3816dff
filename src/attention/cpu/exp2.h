// 2^x for x <= 0 in plain C++ that compilers vectorise. Layer: attention/cpu.
#pragma once

#include <bit>
#include <cstdint>

namespace coppice::attention::cpu {

// 2^f on [-1/2, 1/2] as 1 + f (C1 + ... + f C6): minimax (Remez) in relative error, 2.6e-9 before rounding.
inline constexpr float kExp2C1 = 0.6931472149680281f, kExp2C2 = 0.24022652782887974f, kExp2C3 = 0.05550310551013718f,
                       kExp2C4 = 0.009617692972965197f, kExp2C5 = 0.001340664390238927f, kExp2C6 = 0.0001559467816919747f;
// Below this the result is 0 (2^-126 is the smallest normal number).
inline constexpr float kExp2Underflow = -126.0f;

// Relative error at most 1.2e-7. x in [-inf, 1]; NaN gives 0.
inline float Exp2(float x) {
  if (!(x >= kExp2Underflow)) return 0.0f;
  const float shifted = x + 0x1.8p23f;  // rounds to an integer in the low mantissa bits
  const float f = x - (shifted - 0x1.8p23f);
  const float p = 1 + f * (kExp2C1 + f * (kExp2C2 + f * (kExp2C3 + f * (kExp2C4 + f * (kExp2C5 + f * kExp2C6)))));
  return std::bit_cast<float>(std::bit_cast<int32_t>(p) + (std::bit_cast<int32_t>(shifted) << 23));
}

}  // namespace coppice::attention::cpu
