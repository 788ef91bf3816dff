#include "coppice/core/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "coppice/core/status.h"
#include "core/buffer.h"

namespace coppice {
namespace {

TEST(Types, BF16RoundsToNearestEven) {
  EXPECT_EQ(BF16::FromFloat(1.0f).bits, 0x3f80);
  EXPECT_EQ(BF16::FromFloat(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie to even
  EXPECT_EQ(BF16::FromFloat(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(BF16::FromFloat(std::numeric_limits<float>::quiet_NaN()).ToFloat()));
  EXPECT_EQ(BF16::FromFloat(-INFINITY).ToFloat(), -INFINITY);
}

TEST(Types, EveryF16RoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const float value = half.ToFloat();
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16::FromFloat(value).ToFloat()));
    } else {
      EXPECT_EQ(F16::FromFloat(value).bits, bits) << value;
    }
  }
}

TEST(Types, F16MatchesTheCompilerOnHalfwayCases) {
  for (float value : {65504.0f, 65519.9f, 65520.0f, 1e30f, 6.1e-5f, 5.97e-8f, 2.9e-8f, 2.98e-8f, 0.1f, 1.00048828125f, -0.33333f}) {
    EXPECT_EQ(F16::FromFloat(value).ToFloat(), static_cast<float>(static_cast<_Float16>(value))) << value;
  }
}

TEST(Status, CarriesCodeAndMessage) {
  const Status status = InvalidArgument("n is 0; expected at least 1");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.ToString(), "INVALID_ARGUMENT: n is 0; expected at least 1");
  Result<int> result = status;
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
}

TEST(Buffer, IsZeroedAndAligned) {
  Result<Buffer> buffer = Buffer::Allocate(3 << 20);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  for (uint8_t byte : buffer->Span<uint8_t>()) ASSERT_EQ(byte, 0);
}

TEST(Buffer, RefusesWhatCannotBeHad) {
  Result<Buffer> buffer = Buffer::Allocate(size_t{1} << 62);
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace coppice
