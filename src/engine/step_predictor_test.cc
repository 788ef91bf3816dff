// Step times that are learned, and chunks that are chosen by them: a machine of known speed in place of the clock.
#include "engine/step_predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/scheduler.h"
#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

// A machine whose steps take what StepPredictor can say, or nearly so: products that are bound by the weights up to 32 rows.
double MachineSeconds(const StepSums& shape) {
  return 2e-3 + 1e-4 * std::max(shape.rows(), 32) + 1e-7 * static_cast<double>(shape.prompt_kv) +
         5e-6 * static_cast<double>(shape.decode_kv);
}

// The speeds that MeasureChunks would measure on it.
std::vector<ChunkSpeed> Probe(int32_t most) {
  std::vector<ChunkSpeed> probe;
  for (int32_t tokens = 16; tokens <= most; tokens *= 2) {
    StepSums shape;
    shape.AddPrompt(tokens, 0);
    probe.push_back({.tokens = tokens, .tokens_per_second = tokens / MachineSeconds(shape)});
  }
  return probe;
}

StepSums Hybrid(int32_t prompt_rows, int32_t before, int32_t samples, int32_t kv_len) {
  StepSums shape;
  shape.AddPrompt(prompt_rows, before);
  for (int32_t i = 0; i < samples; ++i) shape.AddDecode(1, kv_len);
  return shape;
}

TEST(StepPredictorTest, KnowsTheProbeBeforeAnyStep) {
  const StepPredictor predictor(Probe(256));
  for (const int32_t rows : {1, 16, 32, 64, 100, 256, 400}) {
    const StepSums shape = Hybrid(rows, 0, 0, 0);
    EXPECT_NEAR(predictor.Seconds(shape), MachineSeconds(shape), 1e-9) << rows;
  }
  EXPECT_DOUBLE_EQ(StepPredictor(Probe(16)).Seconds(Hybrid(32, 0, 0, 0)), 2 * MachineSeconds(Hybrid(16, 0, 0, 0)));
}

TEST(StepPredictorTest, LearnsWhatContextsTake) {
  StepPredictor predictor(Probe(256));
  for (int32_t step = 0; step < 200; ++step) {
    const StepSums shape = Hybrid(step % 3 == 0 ? 0 : 16 + step % 5 * 40, step % 7 * 150, 1 + step % 11, 100 + step % 13 * 50);
    predictor.Add(shape, MachineSeconds(shape));
  }
  for (const StepSums& shape : {Hybrid(128, 900, 8, 500), Hybrid(40, 100, 2, 650), Hybrid(0, 0, 10, 300)})
    EXPECT_NEAR(predictor.Seconds(shape), MachineSeconds(shape), 0.02 * MachineSeconds(shape));
}

// The samples' share of common KV changes from one moment to the next, and so does the time of their context.
TEST(StepPredictorTest, FollowsTheTraffic) {
  StepPredictor predictor(Probe(256));
  const auto seconds = [](const StepSums& shape, double share) {
    return MachineSeconds(shape) - (1 - share) * 5e-6 * static_cast<double>(shape.decode_kv);
  };
  for (const double share : {1.0, 0.1, 1.0}) {
    for (int32_t step = 0; step < 300; ++step) {
      const StepSums shape = Hybrid(step % 4 * 32, step % 4 * 100, 8, 500 + step % 9 * 20);
      predictor.Add(shape, seconds(shape, share));
    }
    const StepSums shape = Hybrid(64, 200, 8, 600);
    EXPECT_NEAR(predictor.Seconds(shape), seconds(shape, share), 0.03 * seconds(shape, share)) << share;
  }
}

TEST(StepPredictorTest, NothingMakesMoreRowsTakeLess) {
  StepPredictor predictor(Probe(256));
  for (int32_t step = 0; step < 100; ++step) {  // noise that a plain fit would follow below zero
    const StepSums shape = Hybrid(16 + step % 8 * 16, step % 5 * 100, 4, 200);
    predictor.Add(shape, MachineSeconds(shape) * (step % 2 == 0 ? 2 : 0.5) / (1 + step % 8));
  }
  double last = 0;
  for (int32_t rows = 1; rows <= 256; ++rows) {
    const double seconds = predictor.Seconds(Hybrid(rows, 300, 4, 200));
    EXPECT_GE(seconds, last);
    last = seconds;
  }
}

TEST(StepPredictorTest, TheMostRowsAreTheLastThatEndInTime) {
  const StepPredictor predictor(Probe(256));
  const StepSums decode = Hybrid(0, 0, 4, 200);
  for (const double target : {6e-3, 10e-3, 20e-3}) {
    const int32_t rows = predictor.MostPromptRows(decode, 100, target, 256);
    StepSums with = decode, beyond = decode;
    with.AddPrompt(rows, 100), beyond.AddPrompt(rows + 1, 100);
    EXPECT_LE(predictor.Seconds(with), target);
    EXPECT_GT(predictor.Seconds(beyond), target);
  }
  EXPECT_EQ(predictor.MostPromptRows(decode, 100, 1, 256), 256);
  EXPECT_EQ(predictor.MostPromptRows(decode, 100, 1e-6, 256), 0);
  EXPECT_EQ(predictor.MostPromptRows(decode, 100, 1, 0), 0);
}

// The hybrid steps, as sums, of four samples that decode and six prompts of 500 tokens on that machine.
std::vector<StepSums> HybridSteps(double target, int32_t steps_ahead = 0) {
  std::vector<StepSums> steps;
  EngineHarness harness({.model = {.max_position = 1024, .num_pages = 1024},
                         .max_running = 16,
                         .max_batch_tokens = 256,
                         .target_tbt = target,
                         .chunk_probe = Probe(256),
                         .step_seconds =
                             [&](const StepSums& shape) {
                               if (shape.prompt_rows > 0 && shape.decode_rows > 0) steps.push_back(shape);
                               return MachineSeconds(shape);
                             },
                         .steps_ahead = steps_ahead,
                         .late_runner = steps_ahead > 0});
  for (int32_t i = 0; i < 4; ++i) harness.Submit(Greedy(Prompt(20, i), 400));
  harness.Step(10);
  steps.clear();
  for (int32_t i = 0; i < 6; ++i) harness.Submit(Greedy(Prompt(500, 10 + i), 2));
  harness.RunToEnd();
  for (size_t slot = 4; slot < 10; ++slot)
    EXPECT_EQ(harness.outputs(slot)[0].tokens, harness.GreedyAfter(Prompt(500, 6 + static_cast<int32_t>(slot)), 2));
  const EngineMetrics metrics = harness.engine().Metrics();
  EXPECT_EQ(metrics.hybrid_steps_over_target,
            std::ranges::count_if(steps, [&](const StepSums& step) { return MachineSeconds(step) > target; }));
  EXPECT_EQ(metrics.hybrid_predicted_seconds > 0, target > 0);
  return steps;
}

TEST(TargetTbtTest, ChunksLetStepsEndInTime) {
  for (const int32_t steps_ahead : {0, 1}) {
    const double target = 15e-3;
    const std::vector<StepSums> steps = HybridSteps(target, steps_ahead);
    int64_t tokens = 0;
    size_t full = 0, late = 0;
    for (const StepSums& step : steps) {
      EXPECT_LE(MachineSeconds(step), 1.2 * target);
      tokens += step.prompt_rows;
      late += MachineSeconds(step) > 1.01 * target;
      full += MachineSeconds(step) >= 0.95 * target;
    }
    EXPECT_EQ(tokens, 6 * 500);
    EXPECT_LE(late, 2) << "until it is known what a prompt's context takes";
    EXPECT_GE(full + 3, steps.size()) << "all but the last ones use the time that they have";
  }
}

TEST(TargetTbtTest, WithoutATargetStepsAreFull) {
  const std::vector<StepSums> steps = HybridSteps(0);
  EXPECT_TRUE(steps.empty()) << "nothing is asked of the clock";
}

TEST(TargetTbtTest, PromptsGoOnWhateverTheTarget) {
  const std::vector<StepSums> steps = HybridSteps(1e-4);
  ASSERT_FALSE(steps.empty());
  int64_t tokens = 0;
  for (const StepSums& step : steps) {
    EXPECT_LE(step.prompt_rows, Scheduler::kLeastChunk);
    tokens += step.prompt_rows;
  }
  EXPECT_EQ(tokens, 6 * 500);
}

// No sample waits for a token: whole budgets.
TEST(TargetTbtTest, PromptsAloneHaveNoTarget) {
  int32_t most = 0;
  EngineHarness harness({.model = {.max_position = 1024, .num_pages = 256},
                         .max_batch_tokens = 256,
                         .target_tbt = 1e-4,
                         .chunk_probe = Probe(256),
                         .step_seconds = [&](const StepSums& shape) {
                           most = std::max(most, shape.prompt_rows);
                           return MachineSeconds(shape);
                         }});
  harness.Submit(Greedy(Prompt(700), 1));
  harness.RunToEnd();
  EXPECT_EQ(most, 256);
}

}  // namespace
}  // namespace coppice
