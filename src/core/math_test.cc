#include "core/math.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <type_traits>

#include "core/divisor.h"

namespace coppice {
namespace {

TEST(Math, CeilDivAndRoundUpMeetAtMultiples) {
  for (int64_t step = 1; step <= 17; ++step) {
    for (int64_t value = 0; value <= 100; ++value) {
      const int64_t up = RoundUp(value, step);
      EXPECT_EQ(up % step, 0);
      EXPECT_GE(up, value);
      EXPECT_LT(up, value + step);
      EXPECT_EQ(CeilDiv(value, step), up / step);
    }
  }
}

TEST(Math, CeilDivAndRoundUpAreOfTheWiderType) {
  static_assert(std::is_same_v<decltype(CeilDiv(1, 1)), int32_t>);
  static_assert(std::is_same_v<decltype(CeilDiv(1, int64_t{1})), int64_t>);
  static_assert(std::is_same_v<decltype(RoundUp(int64_t{1}, 1)), int64_t>);
  static_assert(std::is_same_v<decltype(RoundUp(1u, size_t{1})), size_t>);
  static_assert(std::is_same_v<decltype(CeilDiv(1, uint16_t{1})), int32_t>);
  EXPECT_EQ(CeilDiv(INT32_MAX, int64_t{2}), int64_t{1} << 30);
  EXPECT_EQ(CeilDiv(int64_t{1} << 40, 3), ((int64_t{1} << 40) + 2) / 3);
  EXPECT_EQ(RoundUp(INT32_MAX, int64_t{1} << 16), int64_t{1} << 31);
  EXPECT_EQ(RoundUp(int64_t{(1 << 20) + 1} << 16, 1 << 20), int64_t{(1 << 16) + 1} << 20);
}

TEST(Divisor, DividesAsTheProcessorDoes) {
  std::mt19937 random(3);
  const auto check = [](int32_t n, int32_t d) {
    const Divisor divisor(d);
    ASSERT_EQ(divisor.Floor(n), n / d) << n << " / " << d;
    ASSERT_EQ(divisor.Remainder(n), n % d) << n << " / " << d;
    if (n > INT32_MAX - d + 1) return;
    ASSERT_EQ(divisor.Ceil(n), (n + (d - 1)) / d) << n << " / " << d;
  };
  for (int32_t d = 1; d <= 300; ++d) {
    for (int32_t n = 0; n <= 3 * d; ++n) check(n, d);
    for (int32_t multiple = INT32_MAX / d; multiple > INT32_MAX / d - 3 && multiple > 0; --multiple) {
      check(multiple * d, d);
      check(multiple * d - 1, d);
    }
    check(INT32_MAX, d);
  }
  for (int i = 0; i < 100000; ++i) check(static_cast<int32_t>(random() >> 1), 1 + static_cast<int32_t>(random() % INT32_MAX));
}

}  // namespace
}  // namespace coppice
