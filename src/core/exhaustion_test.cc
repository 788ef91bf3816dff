#include "core/exhaustion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace coppice {
namespace {

using ::testing::HasSubstr;

TEST(CatchExhaustion, PassesOnWhatTheBodyReturns) {
  EXPECT_EQ(*CatchExhaustion("counting", [] { return Result<int>(3); }), 3);
  EXPECT_EQ(CatchExhaustion("counting", [] { return NotFound("no"); }).message(), "no");
}

TEST(CatchExhaustion, SaysWhatRanOut) {
  // Thrown by hand: the operator new of a sanitizer ends the process instead.
  const Status memory = CatchExhaustion("counting", []() -> Status { throw std::bad_alloc(); });
  const Status length = CatchExhaustion("counting", [] { return Result<std::vector<int>>(std::vector<int>(~size_t{0})); }).status();
  for (const Status& status : {memory, length}) {
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("out of memory while counting"));
  }
  const Status threads = CatchExhaustion(
      "counting", []() -> Status { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); });
  EXPECT_EQ(threads.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(threads.message(), HasSubstr("thread"));
}

// Calls the new-handler as operator new does: a sanitizer's operator new ends the process instead.
void FindNoMemory() { std::get_new_handler()(); }

TEST(MemoryPatience, EndsWhenItsTimeIsOver) {
  constexpr auto kLongest = std::chrono::milliseconds(30);
  const MemoryPatience patience(kLongest);
  for (int i = 0; i < 2; ++i) {  // for each allocation anew
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(
        while (true) { FindNoMemory(); }, std::bad_alloc);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, kLongest);
  }
}

TEST(MemoryPatience, IsOfItsThreadAndScope) {
  const MemoryPatience patience(std::chrono::hours(1));
  EXPECT_NO_THROW(FindNoMemory());
  {
    const MemoryPatience none(std::chrono::seconds(0));
    EXPECT_THROW(FindNoMemory(), std::bad_alloc);
  }
  EXPECT_NO_THROW(FindNoMemory());
  std::jthread([] { EXPECT_THROW(FindNoMemory(), std::bad_alloc); });
}

}  // namespace
}  // namespace coppice
