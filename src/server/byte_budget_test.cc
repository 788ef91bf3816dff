#include "server/byte_budget.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace coppice::server {
namespace {

TEST(ByteBudget, OneAloneHasAQuarter) {
  ByteBudget budget(100);
  ByteBudget::Held held(&budget, "a");
  EXPECT_EQ(held.GrowTo(25), BytesTaken::kTaken);
  EXPECT_EQ(held.GrowTo(26), BytesTaken::kShareIsFull);
  EXPECT_EQ(held.bytes(), 25);
  EXPECT_EQ(held.GrowTo(20), BytesTaken::kTaken);  // what it has
  EXPECT_EQ(held.bytes(), 25);
  ByteBudget::Held more(&budget, "a");
  EXPECT_EQ(more.GrowTo(1), BytesTaken::kShareIsFull);
}

TEST(ByteBudget, AnotherAlwaysFindsRoom) {
  constexpr int64_t kLimit = 1 << 20;
  ByteBudget budget(kLimit);
  std::deque<ByteBudget::Held> greedy;
  for (int i = 0; i < 10; ++i) {  // each takes all that it gets
    ByteBudget::Held& held = greedy.emplace_back(&budget, "greedy " + std::to_string(i));
    for (int64_t step = kLimit; step > 0; step /= 2) (void)held.GrowTo(held.bytes() + step);
    EXPECT_GT(held.bytes(), 0);
  }
  ByteBudget::Held held(&budget, "modest");
  EXPECT_EQ(held.GrowTo(kLimit / 100), BytesTaken::kTaken);  // a quarter of the 5.6 % that ten times 3/4 leaves is more
  EXPECT_EQ(held.GrowTo(kLimit / 4), BytesTaken::kShareIsFull);
  ByteBudget::Held large(&budget, "large");
  EXPECT_EQ(large.GrowTo(kLimit / 4), BytesTaken::kAllIsFull);
}

TEST(ByteBudget, WhatIsHeldIsGivenBack) {
  ByteBudget budget(100);
  std::optional<ByteBudget::Held> first(std::in_place, &budget, "a");
  ByteBudget::Held second(&budget, "b");
  EXPECT_EQ(first->GrowTo(25), BytesTaken::kTaken);
  EXPECT_EQ(second.GrowTo(20), BytesTaken::kAllIsFull);
  first.reset();
  EXPECT_EQ(second.GrowTo(20), BytesTaken::kTaken);
}

}  // namespace
}  // namespace coppice::server
