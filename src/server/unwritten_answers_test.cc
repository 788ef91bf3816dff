// The bound on what all answers hold: which gives way, and that it holds with many threads.
#include "server/unwritten_answers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace coppice::server {
namespace {

class UnwrittenAnswersTest : public ::testing::Test {
 protected:
  struct Answer {
    Answer(const std::shared_ptr<UnwrittenAnswers>& all, const std::string& owner) : share(all, [this] { ended = true; }) {
      share.SetOwner(owner);
    }
    std::atomic<bool> ended{false};
    UnwrittenAnswers::Share share;
  };
  static std::unique_ptr<Answer> Make(const std::shared_ptr<UnwrittenAnswers>& all, const std::string& owner) {
    return std::make_unique<Answer>(all, owner);
  }
};

TEST_F(UnwrittenAnswersTest, OnlyTheGreediestGivesWay) {
  const auto all = std::make_shared<UnwrittenAnswers>(100);
  const auto victim = Make(all, "bob");
  std::vector<std::unique_ptr<Answer>> hostile;
  victim->share.Hold(30);  // more than each of the others
  for (int i = 0; i < 20; ++i) {
    hostile.push_back(Make(all, "alice"));
    hostile.back()->share.Hold(10);
    all->MakeRoom();
    EXPECT_LE(all->bytes(), 100);
  }
  EXPECT_FALSE(victim->ended);
  int ended = 0;
  for (const auto& answer : hostile) ended += answer->ended;
  EXPECT_EQ(ended, 20 - 7);
}

TEST_F(UnwrittenAnswersTest, AnOwnersLargestGoesFirst) {
  const auto all = std::make_shared<UnwrittenAnswers>(100);
  const auto large = Make(all, "a"), small = Make(all, "a");
  small->share.Hold(20);
  large->share.Hold(81);
  all->MakeRoom();
  EXPECT_TRUE(large->ended);
  EXPECT_FALSE(small->ended);
  EXPECT_EQ(all->bytes(), 20);
}

TEST_F(UnwrittenAnswersTest, WhatEndsHoldsNothing) {
  const auto all = std::make_shared<UnwrittenAnswers>(0);  // no limit
  {
    const auto answer = Make(all, "a");
    answer->share.Hold(int64_t{1} << 40);
    all->MakeRoom();
    EXPECT_FALSE(answer->ended);
  }
  EXPECT_EQ(all->bytes(), 0);
}

TEST_F(UnwrittenAnswersTest, ManyThreads) {
  const auto all = std::make_shared<UnwrittenAnswers>(1000);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&all, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto answer = Make(all, std::to_string(t));
        answer->share.Hold(100 + i % 300);
        all->MakeRoom();
        if (!answer->ended) answer->share.Hold(50);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(all->bytes(), 0);
}

}  // namespace
}  // namespace coppice::server
