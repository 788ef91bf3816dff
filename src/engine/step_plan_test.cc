// A step's plan: what engines publish of it, and its words.
#include "coppice/engine/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

using attention::ReadReason;
using ::testing::HasSubstr;

Request Sampled(std::vector<int32_t> prompt, int32_t max_tokens, int32_t n) {
  return {.prompt_ids = std::move(prompt), .n = n, .max_tokens = max_tokens};
}

TEST(StepPlan, ReportsWhatTheSamplesOfAPromptRead) {
  for (const int32_t steps_ahead : {0, 1}) {
    SCOPED_TRACE(steps_ahead);
    EngineHarness harness({.steps_ahead = steps_ahead});
    EXPECT_EQ(harness.engine().Metrics().plan, nullptr);
    harness.Submit(Sampled(Prompt(20), 6, 4));
    harness.RunToEnd();
    const EngineMetrics metrics = harness.engine().Metrics();
    ASSERT_NE(metrics.fullest_plan, nullptr);
    const StepPlan& plan = *metrics.fullest_plan;
    EXPECT_EQ(plan.decode_rows, 4);
    EXPECT_EQ(plan.prefill_rows, 0);
    ASSERT_EQ(plan.reads.size(), 1);
    const PlannedRead& read = plan.reads[0];
    EXPECT_EQ(read.parent, 0);
    EXPECT_EQ(read.begin, 0);
    EXPECT_EQ(read.end, 20);
    EXPECT_EQ(read.samples, 4);
    // The bytes are those of the step: nothing is read once where the plan says so of nothing.
    EXPECT_EQ(read.together, plan.kv_bytes_read < plan.kv_bytes_read_unshared);
    EXPECT_TRUE(read.together);
    EXPECT_EQ(metrics.prefixes[0].id, read.node);
  }
}

TEST(StepPlan, AModeThatReadsApartSaysSo) {
  EngineHarness harness({.sharing = SharingMode::kStore});
  harness.Submit(Sampled(Prompt(20), 6, 4));
  harness.RunToEnd();
  const EngineMetrics metrics = harness.engine().Metrics();
  ASSERT_NE(metrics.fullest_plan, nullptr);
  ASSERT_EQ(metrics.fullest_plan->reads.size(), 1);
  EXPECT_FALSE(metrics.fullest_plan->reads[0].together);
  EXPECT_EQ(metrics.fullest_plan->reads[0].reason, ReadReason::kPolicy);
  EXPECT_THAT(PlanText(*metrics.fullest_plan), HasSubstr("4 samples read them apart: the sharing mode allows no other way."));
}

TEST(StepPlan, NothingInCommonIsNothingToRead) {
  for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kNone}) {
    EngineHarness harness({.sharing = sharing});
    harness.Submit(Sampled(Prompt(20), 3, sharing == SharingMode::kNone ? 2 : 1));
    harness.RunToEnd();
    ASSERT_NE(harness.engine().Metrics().plan, nullptr);
    EXPECT_TRUE(harness.engine().Metrics().plan->reads.empty());
    EXPECT_THAT(PlanText(*harness.engine().Metrics().plan), HasSubstr("no two samples have tokens in common"));
  }
}

TEST(StepPlan, EveryRunningNodeIsInTheCounters) {
  EngineHarness harness({.model = {.num_pages = 4096, .page_size = 4}, .max_running = 300, .max_batch_tokens = 600});
  harness.Submit(Sampled(Prompt(20), 12, 300));
  harness.Step(6);
  std::this_thread::sleep_for(std::chrono::milliseconds(120));  // until they are gathered again
  harness.Step(1);
  int32_t running = 0, samples = 0;
  for (const CachedPrefix& node : harness.engine().Metrics().prefixes) {
    running += node.users > 0;
    if (node.begin == 20) samples += node.users;  // what the samples wrote first, of which some is alike
  }
  EXPECT_GT(running, 256);
  EXPECT_EQ(samples, 300);
  harness.RunToEnd();
}

TEST(StepPlanText, SaysEachDecisionInWords) {
  PlannedRead read = {.samples = 16, .together = true, .reason = ReadReason::kFaster, .together_us = 42.6, .apart_us = 210.2};
  EXPECT_EQ(ReasonText(read), "16 samples read them together: predicted cost 43 us a layer, apart 210 us.");
  read.together = false;
  read.together_us = 11.7;
  read.apart_us = 9.31;
  EXPECT_EQ(ReasonText(read), "16 samples read them apart: predicted cost 9.3 us a layer, together 12 us.");
  for (const ReadReason reason : {ReadReason::kForced, ReadReason::kPolicy, ReadReason::kNoRoom, ReadReason::kStepNoGain,
                                  ReadReason::kNotSeen, ReadReason::kOneReader}) {
    read.reason = reason;
    EXPECT_THAT(ReasonText(read), ::testing::MatchesRegex("16 samples read them apart: [a-z].*[a-z]\\."));
  }
}

TEST(StepPlanText, IsATreeOfWhatWasDecided) {
  const auto read = [](int32_t node, int32_t parent, int32_t begin, int32_t end, int32_t samples, int32_t decision) {
    return PlannedRead{.node = node,
                       .parent = parent,
                       .begin = begin,
                       .end = end,
                       .samples = samples,
                       .decision = decision,
                       .together = true,
                       .reason = ReadReason::kForced};
  };
  // Two nodes of one decision are a line; the third and the fourth part below them.
  const StepPlan plan = {
      .step = 7,
      .decode_rows = 5,
      .kv_bytes_read = 1 << 20,
      .kv_bytes_read_unshared = 3 << 20,
      .reads = {read(1, 0, 0, 32, 5, 90), read(2, 1, 32, 40, 5, 90), read(4, 2, 40, 50, 2, 91), read(3, 2, 40, 60, 3, 92)}};
  EXPECT_EQ(PlanText(plan),
            "step 7: 5 tokens of outputs, 0 tokens of prompts\n"
            "  tokens 0 to 40: 5 samples read them together: sharing is forced, whatever it costs.\n"
            "    tokens 40 to 50: 2 samples read them together: sharing is forced, whatever it costs.\n"
            "    tokens 40 to 60: 3 samples read them together: sharing is forced, whatever it costs.\n"
            "KV read by attention: 1.0 MiB; without reading together 3.0 MiB, 3.0 times as much\n");
}

}  // namespace
}  // namespace coppice
