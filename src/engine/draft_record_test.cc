// A guess that no step computes counts as one that a step computes.
#include "engine/draft_record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace coppice {
namespace {

// A guess at each length of a text: a few paths, some of which begin as the text goes on.
std::vector<Draft> GuessesOf(const std::vector<int32_t>& text, int32_t vocab_size, std::mt19937* random) {
  std::vector<Draft> guesses(text.size());
  for (size_t length = 1; length < text.size(); ++length) {
    for (uint32_t path = (*random)() % 4; path > 0; --path) {
      int32_t node = Draft::kRoot;
      const size_t right = (*random)() % 5;
      for (size_t i = 0; i < 4; ++i) {
        const bool follows = i < right && length + i < text.size();
        node = guesses[length].Extend(node, follows ? text[length + i] : static_cast<int32_t>((*random)() % vocab_size));
      }
    }
  }
  return guesses;
}

// Tokens of the steps that compute these guesses.
std::vector<int32_t> StepsOf(const std::vector<int32_t>& text, const std::vector<Draft>& guesses) {
  std::vector<int32_t> steps;
  for (size_t length = 1; length < text.size();) {
    const Draft& guess = guesses[length];
    size_t end = length;
    for (int32_t node = Draft::kRoot; end < text.size();) {
      node = guess.ChildOf(node, text[end++], guess.size());
      if (node == Draft::kRoot) break;
    }
    steps.push_back(static_cast<int32_t>(end - length));
    length = end;
  }
  return steps;
}

TEST(DraftRecord, CountsTheStepsThatDraftsWouldHaveHad) {
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::vector<int32_t> text(200);
    for (int32_t& token : text) token = static_cast<int32_t>(random() % 3);
    const std::vector<Draft> guesses = GuessesOf(text, 3, &random);
    const std::vector<int32_t> steps = StepsOf(text, guesses);
    EXPECT_GT(std::ranges::max(steps), 3);

    DraftRecord computed;
    int32_t length = 1;
    computed.Begin(length, true);
    std::vector<double> expected;
    for (const int32_t tokens : steps) {
      const Draft& guess = guesses[length];
      length += tokens;
      EXPECT_TRUE(computed.Follow(guess, length, text[length - 1]));
      computed.Begin(length, true);
      expected.push_back(computed.tokens_per_step());
    }

    DraftRecord followed;
    size_t guessed_at = 1;
    followed.Begin(1, false);
    std::vector<double> counted;
    for (size_t known = 2; known <= text.size(); ++known) {
      if (!followed.Follow(guesses[guessed_at], static_cast<int32_t>(known), text[known - 1])) continue;
      followed.Begin(static_cast<int32_t>(known), false);
      guessed_at = known;
      counted.push_back(followed.tokens_per_step());
    }
    if (counted.size() < expected.size()) expected.pop_back();  // the text ended within its last guess
    EXPECT_EQ(counted, expected);
  }
}

TEST(DraftRecord, BeginsAtOneAndForgets) {
  DraftRecord record;
  const Draft none;
  EXPECT_TRUE(record.Follow(none, 5, 0));
  EXPECT_EQ(record.tokens_per_step(), 1);
  Draft four;
  for (int32_t i = 0; i < 4; ++i) four.Extend(i - 1, 7);
  for (int32_t step = 0; step < 50; ++step) {
    record.Begin(5 * step + 1, true);
    EXPECT_TRUE(record.Follow(four, 5 * step + 6, 7));
  }
  EXPECT_NEAR(record.tokens_per_step(), 5, 0.01);
  for (int32_t length = 300; length < 350; ++length) {
    record.Begin(length, false);
    EXPECT_TRUE(record.Follow(none, length + 1, 7));
  }
  EXPECT_NEAR(record.tokens_per_step(), 1, 0.01);
}

// Looked at twice at one length, or not at all at some, it neither counts nor goes on with what it did not see.
TEST(DraftRecord, TokensThatItDidNotSeeCountForNothing) {
  DraftRecord record;
  Draft guess;
  guess.Extend(Draft::kRoot, 1);
  record.Begin(10, false);
  EXPECT_FALSE(record.Follow(guess, 10, 0));
  EXPECT_FALSE(record.Follow(guess, 11, 1));
  EXPECT_FALSE(record.Follow(guess, 11, 1));
  EXPECT_TRUE(record.Follow(guess, 13, 1));
  EXPECT_EQ(record.tokens_per_step(), 1);
}

}  // namespace
}  // namespace coppice
