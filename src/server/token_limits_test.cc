// Buckets of tokens by API key, at times of the test's choosing.
#include "server/token_limits.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace coppice::server {
namespace {

using std::chrono::seconds;

const TokenLimits::Clock::time_point kBegin{};

TEST(TokenLimits, ABucketHoldsAMinuteAndFillsEvenly) {
  TokenLimits limits({.per_minute = 60}, {});
  EXPECT_TRUE(limits.Take("a", 50, 0, kBegin).ok);
  const TokenLimits::Taken refused = limits.Take("a", 25, 0, kBegin + seconds(5));
  EXPECT_FALSE(refused.ok);
  EXPECT_EQ(refused.left, 15);
  EXPECT_EQ(refused.wait_seconds, 10);
  EXPECT_TRUE(limits.Take("b", 60, 0, kBegin).ok) << "another key has its own";
  EXPECT_TRUE(limits.Take("a", 25, 0, kBegin + seconds(15)).ok) << "the reported time is enough";
  EXPECT_FALSE(limits.Take("a", 61, 0, kBegin + seconds(10'000)).ok) << "it holds no more than a minute";
}

TEST(TokenLimits, WhatWasNotUsedComesBack) {
  TokenLimits limits({.per_minute = 60}, {});
  EXPECT_TRUE(limits.Take("a", 60, 0, kBegin).ok);
  limits.GiveBack("a", 20);
  EXPECT_TRUE(limits.Take("a", 20, 0, kBegin).ok);
  EXPECT_FALSE(limits.Take("a", 1, 0, kBegin).ok);
  limits.GiveBack("a", 500);
  EXPECT_EQ(limits.Take("a", 61, 0, kBegin).left, 60);
}

TEST(TokenLimits, AReserveStaysUnlessTheBucketIsFull) {
  TokenLimits limits({.per_minute = 60}, {});
  EXPECT_TRUE(limits.Take("a", 30, 30, kBegin).ok);
  const TokenLimits::Taken refused = limits.Take("a", 10, 30, kBegin);
  EXPECT_FALSE(refused.ok);
  EXPECT_EQ(refused.wait_seconds, 10);
  EXPECT_TRUE(limits.Take("a", 10, 0, kBegin).ok) << "the reserve is for others";
  EXPECT_FALSE(limits.Take("a", 50, 30, kBegin + seconds(39)).ok);
  EXPECT_TRUE(limits.Take("a", 50, 30, kBegin + seconds(40)).ok) << "all that the bucket can ever hold";
}

TEST(TokenLimits, NeverMoreThanABucketAndWhatTimeBrings) {
  TokenLimits limits({.per_minute = 600}, {});
  int64_t used = 0;
  for (int64_t step = 0; step < 5'000; ++step) {
    const int64_t asked = 1 + step * 7919 % 83;
    const int64_t unused = step % 3 == 0 ? asked / 2 : 0;
    if (!limits.Take("a", asked, 0, kBegin + std::chrono::milliseconds(100 * step)).ok) continue;
    limits.GiveBack("a", unused);
    used += asked - unused;
    ASSERT_LE(used, 600 + step);  // 600 a minute are one in 100 ms
  }
  EXPECT_GT(used, 600 + 4'000) << "what comes in can be used";
}

TEST(TokenLimits, KeysMayHaveTheirOwn) {
  TokenLimits limits({.per_request = 10, .per_minute = 100}, {{"big", {.per_minute = 1000}}, {"free", {}}});
  EXPECT_EQ(limits.MostOfRequest("other"), 10);
  EXPECT_EQ(limits.MostOfRequest("big"), 1000);
  EXPECT_EQ(limits.MostOfRequest("free"), 0);
  EXPECT_TRUE(limits.Take("free", 1'000'000'000, 0, kBegin).ok);
  EXPECT_TRUE(limits.Take("big", 1000, 0, kBegin).ok);
  EXPECT_FALSE(limits.Take("big", 1, 0, kBegin).ok);
  limits.GiveBack("free", 5);
}

}  // namespace
}  // namespace coppice::server
