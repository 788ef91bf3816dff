#include "core/math.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace coppice
