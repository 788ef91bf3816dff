// Division by a number that stays the same, as a multiplication and a shift: where a loop over a thousand samples divides several
// times for each, the processor's own division is a third of the loop. Layer: core.
// Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), theorem 4.2.
#pragma once

#include <bit>
#include <cstdint>

namespace coppice {

class Divisor {
 public:
  // REQUIRES: divisor > 0.
  explicit constexpr Divisor(int32_t divisor)
      : divisor_(divisor),
        shift_(31 + static_cast<int>(std::bit_width(static_cast<uint32_t>(divisor - 1)))),
        multiplier_(((uint64_t{1} << shift_) + divisor - 1) / divisor) {}

  constexpr int32_t value() const { return divisor_; }
  // n / divisor, rounded down. REQUIRES: n >= 0.
  constexpr int32_t Floor(int32_t n) const {
    return static_cast<int32_t>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * multiplier_) >> shift_);
  }
  // n / divisor, rounded up. REQUIRES: n >= 0, n + divisor - 1 <= INT32_MAX.
  constexpr int32_t Ceil(int32_t n) const { return Floor(n + (divisor_ - 1)); }
  constexpr int32_t Remainder(int32_t n) const { return n - Floor(n) * divisor_; }

 private:
  int32_t divisor_;
  int shift_;            // 31..62
  uint64_t multiplier_;  // 2^shift / divisor, rounded up: below 2^32 + 1, so that products fit
};

}  // namespace coppice
