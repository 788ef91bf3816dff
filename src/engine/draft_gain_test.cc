// Drafting follows what steps cost: the times are given here, so every decision is exact.
#include "engine/draft_gain.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

struct Counts {
  int32_t with_drafts = 0, without = 0;
};

// `steps` steps of `samples` samples; a step with drafts takes `seconds` and gives `tokens` a sample, one without takes 1 and
// gives 1.
Counts RunSteps(DraftGain* gain, int32_t steps, int32_t samples, double seconds, double tokens) {
  Counts counts;
  for (int32_t i = 0; i < steps; ++i) {
    const bool drafts = gain->ShouldDraft(samples);
    ++(drafts ? counts.with_drafts : counts.without);
    gain->Note({.samples = samples, .asked = drafts, .tokens = samples * (drafts ? tokens : 1), .seconds = drafts ? seconds : 1});
  }
  return counts;
}

constexpr int32_t kSamples = 8;
const int32_t kBlock = DraftGain::BlockSteps(kSamples);

TEST(DraftGain, KeepsTheCheaperWayAfterOneRoundWhereItIsClear) {
  DraftGain saves, costs;
  EXPECT_EQ(RunSteps(&saves, 2 * kBlock + 31, kSamples, 1.5, 3).without, kBlock);
  EXPECT_EQ(RunSteps(&costs, 2 * kBlock + 31, kSamples, 1.5, 1.25).with_drafts, kBlock);
  EXPECT_TRUE(saves.ShouldDraft(kSamples));
  EXPECT_FALSE(costs.ShouldDraft(kSamples));
}

TEST(DraftGain, ComparesTwiceWhereItIsNotClear) {
  DraftGain gain;
  EXPECT_EQ(RunSteps(&gain, 4 * kBlock + 16, kSamples, 1.05, 1).with_drafts, 2 * kBlock);
  EXPECT_FALSE(gain.ShouldDraft(kSamples));
}

TEST(DraftGain, KeepsDraftingWhereNeitherIsCheaper) {
  DraftGain gain;
  RunSteps(&gain, 4 * kBlock, kSamples, 1.01, 1);
  EXPECT_TRUE(gain.IsSettled(kSamples));
  EXPECT_TRUE(gain.ShouldDraft(kSamples));
}

// Trials become rare while they agree: of 10^5 steps few are the dearer way's.
TEST(DraftGain, TriesAgainSeldom) {
  DraftGain costs, saves;
  EXPECT_LT(RunSteps(&costs, 100'000, 8, 1.5, 1).with_drafts, 1'000);
  EXPECT_LT(RunSteps(&saves, 100'000, 8, 1.5, 3).without, 1'000);
  EXPECT_GT(RunSteps(&costs, 1'000, 8, 1.5, 1).with_drafts, 0);
}

TEST(DraftGain, FollowsATextThatChanges) {
  DraftGain gain;
  RunSteps(&gain, 5'000, 8, 1.5, 3);
  EXPECT_LT(RunSteps(&gain, 1'000, 8, 1.5, 1).with_drafts,
            100);  // seen at once, since drafting costs more than what the trial saw without
  RunSteps(&gain, 2 * DraftGain::kLongestPause, 8, 1.5, 3);  // seen by the next trial
  EXPECT_LT(RunSteps(&gain, 1'000, 8, 1.5, 3).without, 100);
}

TEST(DraftGain, SizesOfStepsAreApart) {
  DraftGain gain;
  RunSteps(&gain, 100, 64, 1.5, 1);
  RunSteps(&gain, 100, 1, 1.1, 2);
  EXPECT_FALSE(gain.ShouldDraft(64));
  EXPECT_FALSE(gain.ShouldDraft(100));
  EXPECT_TRUE(gain.ShouldDraft(1));
  EXPECT_FALSE(gain.IsSettled(8));
}

// One slow step, of a machine that others use too, decides nothing.
TEST(DraftGain, AnOutlierDecidesNothing) {
  for (int32_t slow = 0; slow < kBlock; ++slow) {
    DraftGain gain;
    for (int32_t i = 0; i < 2 * kBlock; ++i) RunSteps(&gain, 1, kSamples, i == slow ? 50 : 1.5, 3);
    EXPECT_TRUE(gain.IsSettled(kSamples)) << slow;
    EXPECT_TRUE(gain.ShouldDraft(kSamples)) << slow;
  }
}

// Steps for which nothing could be guessed cost a CPU what others do, and drafting goes on; a GPU, whose steps wait for each other
// where they ask, they cost more.
TEST(DraftGain, StepsWithoutGuessesCountAsTheyCome) {
  DraftGain cpu, gpu;
  EXPECT_LT(RunSteps(&cpu, 1'000, 8, 1, 1).without, 100);
  EXPECT_LT(RunSteps(&gpu, 1'000, 8, 1.1, 1).with_drafts, 100);
}

// Steps of one way that differ, as some have many guesses and some have none, count as they are.
TEST(DraftGain, CountsTheSumOfStepsThatDiffer) {
  DraftGain gain;
  int32_t with_drafts = 0;
  for (int32_t i = 0; i < 1'000; ++i) {
    const bool many = i % 3 == 0;  // one step of three: twice the time, half a token more
    with_drafts += RunSteps(&gain, 1, kSamples, many ? 2 : 1, many ? 1.5 : 1).with_drafts;
  }
  EXPECT_LT(with_drafts, 100);
}

// One that was launched ahead of a decision is not counted for the other way.
TEST(DraftGain, StepsOfTheOtherWayAreNotCounted) {
  DraftGain gain;
  for (int32_t i = 0; i < 1'000; ++i) gain.Note({.samples = 8, .asked = false, .tokens = 8, .seconds = 1e-9});
  EXPECT_FALSE(gain.IsSettled(8));
  EXPECT_EQ(RunSteps(&gain, 2 * kBlock + 31, kSamples, 1.5, 3).without, kBlock);
}

// A sample alone accepts nothing in some steps and all in others: a block is long enough to see both, and counts tokens, not steps.
TEST(DraftGain, CountsWhatStepsGaveTogether) {
  DraftGain gain;
  for (int32_t i = 0; i < 2 * DraftGain::BlockSteps(1); ++i) RunSteps(&gain, 1, 1, 1.2, i % 3 == 0 ? 5 : 1);
  EXPECT_TRUE(gain.IsSettled(1));
  EXPECT_TRUE(gain.ShouldDraft(1));
}

// As RunSteps, where drafts that give `tokens` a sample are forecast to give `promise`.
Counts RunForecast(DraftGain* gain, int32_t steps, double seconds, double promise) {
  Counts counts;
  for (int32_t i = 0; i < steps; ++i) {
    const bool drafts = gain->ShouldDraft(kSamples, promise);
    ++(drafts ? counts.with_drafts : counts.without);
    gain->Note({.samples = kSamples, .asked = drafts, .tokens = kSamples * (drafts ? promise : 1), .seconds = drafts ? seconds : 1},
               promise);
  }
  return counts;
}

// A GPU's first steps of a shape capture it. They say nothing, but where none but they come, they are what drafting costs.
TEST(DraftGain, FirstStepsOfAShapeAreLeftOut) {
  DraftGain captures, costs;
  const auto run = [](DraftGain* gain, int32_t steps, int32_t first_steps) {
    for (int32_t i = 0; i < steps; ++i) {
      const bool drafts = gain->ShouldDraft(kSamples), is_first = drafts && first_steps-- > 0;
      gain->Note({.samples = kSamples,
                  .asked = drafts,
                  .tokens = drafts ? 3.0 * kSamples : kSamples,
                  .seconds = is_first ? 20
                             : drafts ? 1.5
                                      : 1,
                  .is_first = is_first});
    }
  };
  run(&captures, 100, 12);
  EXPECT_TRUE(captures.ShouldDraft(kSamples));
  run(&costs, 60, 1'000);
  EXPECT_FALSE(costs.ShouldDraft(kSamples));
}

TEST(DraftGain, NothingIsTriedThatPromisesNothing) {
  DraftGain gain;
  EXPECT_EQ(RunForecast(&gain, 10'000, 1.5, 1).with_drafts, 0);
  EXPECT_GT(RunForecast(&gain, 1'000, 1.5, 3).with_drafts, 900);
}

TEST(DraftGain, APauseEndsWhereThePromiseIsBetterThanTheCost) {
  DraftGain gain;
  RunForecast(&gain, 20'000, 1.5, 1.2);  // tried, and too dear: pauses are long by now
  EXPECT_LE(RunForecast(&gain, 1'000, 1.5, 1.2).with_drafts, 4 * kBlock);
  EXPECT_GT(RunForecast(&gain, 100, 1.5, 2).with_drafts, 100 - kBlock - DraftGain::kShortestPause);
  EXPECT_LT(RunForecast(&gain, 1'000, 1.5, 1).with_drafts, 50);  // and drafting ends with it
}

}  // namespace
}  // namespace coppice
