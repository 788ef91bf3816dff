#include "coppice/engine/ranking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Finished {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

std::vector<RankedSample> Views(const std::vector<Finished>& samples) {
  std::vector<RankedSample> views;
  for (const Finished& sample : samples) views.push_back({sample.text, sample.ids, sample.logprobs});
  return views;
}

TEST(Ranking, ByTheMeanNotTheSum) {
  const std::vector<Finished> samples = {
      {"long", {1, 2, 3}, {-0.5f, -0.5f, -0.5f}}, {"short", {4}, {-1.0f}}, {"none", {}, {}}, {"equal", {5, 6}, {-0.25f, -0.75f}}};
  EXPECT_THAT(RankByMeanLogprob(Views(samples)), ElementsAre(0, 3, 1, 2));  // 0 and 3 tie: their own order
}

TEST(Ranking, DuplicatesAreEqualTextsOrEqualIdsWithoutText) {
  const std::vector<Finished> samples = {{"a", {1}, {-3}}, {"b", {2}, {-1}}, {"a", {1, 7}, {-2}},
                                         {"", {9}, {-4}},  {"", {9}, {-5}},  {"", {8}, {-6}}};
  // "a" of sample 2 ranks before that of sample 0 and is the one that stays, though its tokens differ.
  EXPECT_THAT(BestOf(Views(samples), 10, /*deduplicate=*/true), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(BestOf(Views(samples), 10, /*deduplicate=*/false), ElementsAre(1, 2, 0, 3, 4, 5));
  EXPECT_THAT(BestOf(Views(samples), 3, /*deduplicate=*/true), ElementsAre(1, 2, 3));
  EXPECT_THAT(BestOf(Views(samples), 0, true), IsEmpty());
}

TEST(ExtractAnswer, TheLastMatchAndItsFirstGroup) {
  EXPECT_EQ(*ExtractAnswer("3 apples and 4 pears are 7 fruits.", "[0-9]+"), "7");
  EXPECT_EQ(*ExtractAnswer("The answer is 12.\nSo the answer is  15 .", "answer is([^.]*)\\."), "15");
  EXPECT_EQ(*ExtractAnswer("yes", "(no)|yes"), "yes");  // the group took no part: the whole match
  EXPECT_EQ(*ExtractAnswer("fünf", "\\p{L}+$"), "fünf");
  EXPECT_EQ(*ExtractAnswer("ab", "x*"), "");  // only empty matches
  EXPECT_EQ(*ExtractAnswer("words", "[0-9]+"), std::nullopt);
  EXPECT_EQ(*ExtractAnswer("", "^$"), "");
}

TEST(ExtractAnswer, RefusesBadPatternsAndEndlessOnes) {
  EXPECT_THAT(ExtractAnswer("x", "(").status().message(), HasSubstr("answer pattern (: missing closing parenthesis at offset 1"));
  EXPECT_THAT(ExtractAnswer(std::string(64, 'a'), "(a+)+$x|(a|a)*b").status().message(),
              StartsWith("answer pattern (a+)+$x|(a|a)*b: match limit"));
  const std::string long_one = '(' + std::string(5000, 'a');
  EXPECT_LT(ExtractAnswer("", long_one).status().message().size(), 300u);
  EXPECT_EQ(ExtractAnswer(std::string(64, 'a'), "(a+)+$x|(a|a)*b").status().code(), StatusCode::kInvalidArgument);
}

TEST(MajorityVote, CountsAnswersNotSamples) {
  const std::vector<Finished> samples = {{"so 7", {1}, {-0.1f}}, {"it is 12", {2}, {-2.0f}}, {"12", {3}, {-1.0f}},
                                         {"no idea", {4}, {-0}}, {"8", {5}, {-0.3f}},        {"also 12 ", {6}, {-3.0f}}};
  const Result<std::vector<VotedAnswer>> votes = MajorityVote(Views(samples), "[0-9]+");
  ASSERT_TRUE(votes.ok()) << votes.status().ToString();
  ASSERT_EQ(votes->size(), 3u);
  EXPECT_EQ((*votes)[0].answer, "12");
  EXPECT_THAT((*votes)[0].voters, ElementsAre(1, 2, 5));
  EXPECT_DOUBLE_EQ(*(*votes)[0].mean_logprob, -1.0);
  EXPECT_EQ((*votes)[1].answer, "7");  // one vote each: the likelier sample decides
  EXPECT_EQ((*votes)[2].answer, "8");
  EXPECT_FALSE(MajorityVote(Views(samples), "[").ok());
  EXPECT_THAT(*MajorityVote(Views(samples), "zebra"), IsEmpty());
}

}  // namespace
}  // namespace coppice
