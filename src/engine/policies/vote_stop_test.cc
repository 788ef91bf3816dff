// The vote that stops: it says what the whole vote says, and no later than any rule that does.
#include "engine/policies/vote_stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace coppice {
namespace {

using Answers = std::vector<std::optional<std::string>>;

// The answers with the most votes: more than one where log-probabilities decide.
std::vector<std::string> Winners(const Answers& answers) {
  std::map<std::string, int> votes;
  for (const std::optional<std::string>& answer : answers) {
    if (answer) ++votes[*answer];
  }
  int most = 0;
  for (const auto& [answer, count] : votes) most = std::max(most, count);
  std::vector<std::string> winners;
  for (const auto& [answer, count] : votes) {
    if (count == most) winners.push_back(answer);
  }
  return winners;
}

TEST(VoteStop, SettlesWhereNothingElseCanWinAndNotBefore) {
  std::mt19937 random(7);
  for (int round = 0; round < 3'000; ++round) {
    const int n = std::uniform_int_distribution(1, 12)(random), kinds = std::uniform_int_distribution(1, 4)(random);
    Answers answers;
    for (int i = 0; i < n; ++i) {
      const int kind = std::uniform_int_distribution(0, kinds)(random);
      answers.push_back(kind == 0 ? std::nullopt : std::optional(std::string(1, static_cast<char>('a' + kind))));
    }
    VoteStop vote(n);
    for (int ended = 0; ended <= n; ++ended) {
      // The worst that the rest can do: all vote for the strongest other answer, or for a new one.
      const Answers so_far(answers.begin(), answers.begin() + ended);
      const std::vector<std::string> leaders = Winners(so_far);
      bool can_change = leaders.size() != 1;
      for (char other = 'a'; other <= 'f' && !can_change; ++other) {
        if (leaders.front() == std::string(1, other)) continue;
        Answers worst = so_far;
        worst.resize(static_cast<size_t>(n), std::string(1, other));
        can_change = Winners(worst) != leaders;
      }
      ASSERT_EQ(vote.settled(), !can_change) << "round " << round << ", " << ended << " of " << n;
      ASSERT_EQ(vote.settled() || ended == n, vote.needed() == 0);
      if (vote.settled()) {
        ASSERT_EQ(Winners(answers), leaders);
      }
      if (ended < n) vote.Add(answers[static_cast<size_t>(ended)]);
    }
  }
}

// 24 of 40 votes for one answer and 4 for each of four others, in a random order, 8 samples of equal length at a time, no more
// under way than may be needed: what the vote saves of the tokens.
TEST(VoteStop, SavesTokens) {
  constexpr int kRounds = 2'000, kSamples = 40, kAtATime = 8;
  std::mt19937 random(7);
  double begun = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> answers;
    for (const auto& [answer, votes] : {std::pair(0, 24), {1, 4}, {2, 4}, {3, 4}, {4, 4}})
      answers.insert(answers.end(), votes, answer);
    std::ranges::shuffle(answers, random);
    VoteStop vote(kSamples);
    int under_way = 0, next = 0;
    while (!vote.settled() && (under_way > 0 || next < kSamples)) {
      for (; under_way < std::min(kAtATime, vote.needed()); ++under_way) ++begun;
      vote.Add(std::to_string(answers[static_cast<size_t>(next++)]));
      --under_way;
    }
    EXPECT_EQ(under_way, 0);  // none was in vain
  }
  EXPECT_GT(1 - begun / (kRounds * kSamples), 0.29);
}

TEST(VoteStop, NeededVotesSettleIt) {
  VoteStop vote(10);
  EXPECT_EQ(vote.needed(), 6);
  for (int i = 0; i < 3; ++i) vote.Add("a");
  vote.Add("b");
  vote.Add(std::nullopt);
  EXPECT_EQ(vote.needed(), 2);  // 5 : 1 with 3 open
  vote.Add("a");
  EXPECT_FALSE(vote.settled());
  EXPECT_EQ(vote.needed(), 1);
  vote.Add("a");
  EXPECT_TRUE(vote.settled());
}

}  // namespace
}  // namespace coppice
