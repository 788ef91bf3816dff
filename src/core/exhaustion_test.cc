#include "core/exhaustion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace coppice {
namespace {

using ::testing::HasSubstr;

TEST(CatchExhaustion, PassesOnWhatTheBodyReturns) {
  EXPECT_EQ(*CatchExhaustion("counting", [] { return Result<int>(3); }), 3);
  EXPECT_EQ(CatchExhaustion("counting", [] { return NotFound("no"); }).message(), "no");
}

TEST(CatchExhaustion, SaysWhatRanOut) {
  const auto more_elements = [](size_t count) {
    return CatchExhaustion("counting", [count] { return Result<std::vector<int>>(std::vector<int>(count)); }).status();
  };
  for (const size_t count : {size_t{1} << 60, ~size_t{0}}) {  // bad_alloc, length_error
    EXPECT_EQ(more_elements(count).code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(more_elements(count).message(), HasSubstr("out of memory while counting"));
  }
  const Status status = CatchExhaustion(
      "counting", []() -> Status { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); });
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("thread"));
}

}  // namespace
}  // namespace coppice
