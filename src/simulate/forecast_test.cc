#include "simulate/forecast.h"

#include <gtest/gtest.h>

#include <vector>

#include "simulate/chat_mix.h"
#include "simulate/testing/simple_costs.h"

namespace coppice::simulate {
namespace {

Trace TwoLevels() {
  Trace trace;
  for (uint64_t group = 0; group < 3; ++group) {
    for (uint64_t i = 0; i < 4; ++i)
      trace.Add(
          {.arrival = 0, .prompt = {{0, 1000}, {1 + group, 200}, {100 + 4 * group + i, 30}}, .output_tokens = 40, .samples = 2});
  }
  trace.Add({.arrival = 0, .prompt = {{50, 77}}, .output_tokens = 40});
  return trace;
}

TEST(Forecast, CountsWhatIsStoredWithAndWithoutSharing) {
  const Forecast forecast = MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 100000});
  EXPECT_EQ(forecast.requests, 13);
  EXPECT_EQ(forecast.samples, 25);
  EXPECT_EQ(forecast.prompt_tokens, 12 * 1230 + 77);
  EXPECT_EQ(forecast.computed_tokens, 1000 + 3 * 200 + 12 * 30 + 77);
  EXPECT_EQ(forecast.stored_tokens, forecast.computed_tokens + 25 * 40);
  EXPECT_EQ(forecast.stored_tokens_apart, 24 * 1230 + 77 + 25 * 40);
  EXPECT_EQ(forecast.largest_batch, 25);
  EXPECT_EQ(forecast.largest_batch_apart, 25);
  ASSERT_EQ(forecast.tree.size(), 5u);
  EXPECT_EQ(forecast.tree[0].requests, 12);
  EXPECT_EQ(forecast.tree[0].samples, 24);
  EXPECT_EQ(forecast.tree[0].ends, 0);
  EXPECT_EQ(forecast.tree[1].depth, 1);
  EXPECT_EQ(forecast.tree[1].ends, 4);
  EXPECT_EQ(forecast.tree[1].longest_end, 30);
  EXPECT_EQ(forecast.tree[4].node, kNoNode);
  EXPECT_EQ(forecast.tree[4].ends, 1);
  EXPECT_EQ(forecast.tree[4].shortest_end, 77);
}

TEST(Forecast, TheCacheBoundsTheBatch) {
  // 1,000 + 200 + (30 + 80) for the first request, 110 for each further one of its group.
  EXPECT_EQ(MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 1309}).largest_batch, 0);
  EXPECT_EQ(MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 1310}).largest_batch, 2);
  EXPECT_EQ(MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 1640}).largest_batch, 8);
  EXPECT_EQ(MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 1949}).largest_batch, 8);
  EXPECT_EQ(MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 1950}).largest_batch, 10);
  const Forecast apart = MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 2 * 1270});
  EXPECT_EQ(apart.largest_batch_apart, 2);
  const Forecast few = MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.max_running = 5, .kv_tokens = 100000});
  EXPECT_EQ(few.largest_batch, 4);
}

TEST(Forecast, ARequestOfMoreSamplesThanPlacesHasThemAll) {
  Trace trace;
  for (uint64_t i = 0; i < 2; ++i) trace.Add({.arrival = 0, .prompt = {{i, 100}}, .output_tokens = 40, .samples = 1 << 30});
  const Forecast forecast = MakeForecast(trace, testing::OneSecondSteps(), {.max_running = 8, .kv_tokens = 100000});
  EXPECT_EQ(forecast.largest_batch, 8);
  EXPECT_EQ(forecast.largest_batch_apart, 8);
  EXPECT_EQ(forecast.step.samples, 8);
  EXPECT_EQ(forecast.samples, int64_t{2} << 30);
  ASSERT_EQ(forecast.tree.size(), 1u);
  EXPECT_EQ(forecast.tree[0].requests, 2);
  EXPECT_EQ(forecast.tree[0].samples, int64_t{2} << 30);
}

TEST(Forecast, BreakEvenIsTheEquationOfRelayAttention) {
  const Forecast forecast = MakeForecast(TwoLevels(), testing::OneSecondSteps(), {.kv_tokens = 100000});
  ASSERT_EQ(forecast.break_even.size(), 9u);
  // s and c of the mean sample: 24 with 1,230 of their prompt shared (each prompt has two samples), one with none.
  EXPECT_NEAR(forecast.shared_tokens, 24 * 1230 / 25.0, 1e-9);
  EXPECT_NEAR(forecast.own_tokens, (24 * 20 + 77 + 20) / 25.0, 1e-9);
  const double s = 1181, c = (24 * 20 + 97) / 25.0;
  for (const BreakEven& row : forecast.break_even) {
    EXPECT_NEAR(row.relay_gain, (s + c + 2) / (s / row.samples + c + 7), 1e-9);
    EXPECT_GE(row.attention_gain, 1 - 1e-9);  // what saves no time is not shared
    EXPECT_LE(row.step_gain, row.attention_gain + 1e-9);
  }
  EXPECT_GT(forecast.break_even.back().attention_gain, 1.5);
  EXPECT_DOUBLE_EQ(forecast.break_even.front().attention_gain, 1);
}

TEST(Forecast, AnyTraceHasOne) {
  const Trace trace = MakeChatMix({.requests = 3000, .rate = 10, .max_context = 2048});
  const Forecast forecast = MakeForecast(trace, testing::OneSecondSteps(), {.kv_tokens = 200000});
  EXPECT_EQ(forecast.requests, 3000);
  EXPECT_GT(forecast.largest_batch, forecast.largest_batch_apart);
  EXPECT_LE(forecast.largest_batch, 256);
  EXPECT_GT(forecast.step.seconds, 1);
  EXPECT_LE(forecast.step.attention_seconds, forecast.step.attention_seconds_apart);
  EXPECT_LE(forecast.step.kv_bytes_read, forecast.step.kv_bytes_read_unshared);
  int64_t alone = 0;
  for (const JobNode& node : forecast.tree) alone += node.ends;
  EXPECT_EQ(alone, 3000);
}

}  // namespace
}  // namespace coppice::simulate
