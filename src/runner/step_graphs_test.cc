// Which steps share a graph, and how many graphs are kept.
#include "runner/step_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>

namespace coppice {
namespace {

constexpr StepShape kMost = {.rows = 8192, .logit_rows = 8192, .draws = 8192};

StepShape Decoding(int32_t rows) { return {.rows = rows, .logit_rows = rows, .draws = rows}; }

TEST(FilledUp, EachRowOfADecodingStepStaysARowThatIsDrawnFrom) {
  for (int32_t rows = 1; rows <= kMost.rows; ++rows) {
    const StepShape filled = FilledUp(Decoding(rows), kMost);
    ASSERT_EQ(filled, Decoding(filled.rows)) << rows;
    ASSERT_EQ(FilledUp(filled, kMost), filled) << rows;
  }
  EXPECT_EQ(FilledUp(Decoding(1), kMost).rows, 1);
  EXPECT_EQ(FilledUp(Decoding(3), kMost).rows, 4);
  EXPECT_EQ(FilledUp(Decoding(9), kMost).rows, 16);
  EXPECT_EQ(FilledUp(Decoding(250), kMost).rows, 256);
  EXPECT_EQ(FilledUp(Decoding(257), kMost).rows, 288);
}

TEST(FilledUp, StepsOfDraftsHaveFewShapes) {
  std::set<StepShape> shapes;
  for (int32_t rows = 1; rows <= 1024; ++rows) {
    for (int32_t drawn = rows / 2 + 1; drawn <= rows; ++drawn) {
      const StepShape step = {.rows = rows, .logit_rows = drawn, .draws = drawn};
      const StepShape filled = FilledUp(step, kMost, Filling::kCoarse);
      ASSERT_GE(filled.rows, rows);
      ASSERT_LE(filled.rows, std::max(16, rows + rows / 2)) << rows;
      ASSERT_EQ(FilledUp(filled, kMost, Filling::kCoarse), filled);
      if (2 * drawn > filled.rows) {
        ASSERT_EQ(filled, Decoding(filled.rows)) << rows << ", " << drawn;
        shapes.insert(filled);
      }
    }
  }
  EXPECT_EQ(shapes.size(), 17u);
  EXPECT_EQ(FilledUp(Decoding(33), kMost, Filling::kCoarse).rows, 48);
  EXPECT_EQ(FilledUp(Decoding(49), kMost, Filling::kCoarse).rows, 64);
  EXPECT_EQ(FilledUp(Decoding(65), {.rows = 80, .logit_rows = 80, .draws = 80}, Filling::kCoarse), Decoding(80));
}

TEST(FilledUp, LittleIsComputedInVain) {
  std::set<int32_t> sizes;
  for (int32_t rows = 1; rows <= kMost.rows; ++rows) {
    const int32_t filled = FilledUp({.rows = rows}, kMost).rows;
    ASSERT_GE(filled, rows);
    ASSERT_LE(filled - rows, rows > 1024 ? rows / 32 : rows > 8 ? 31 : rows - 1) << rows;
    if (rows > 8 && rows <= 256) {
      ASSERT_LT(filled - rows, 8) << rows;
    }
    sizes.insert(filled);
  }
  EXPECT_LE(sizes.size(), 160u);
}

// Of rows of logits fewer than a sixteenth of the rows are added, and as many draws, which cost nothing; none are added to none.
TEST(FilledUp, RandomStepsAreCoveredByFewShapes) {
  std::mt19937 random(5);
  for (const int32_t budget : {8192, 2048, 1000, 500, 64, 5, 1}) {
    const StepShape most = {.rows = budget, .logit_rows = budget, .draws = budget};
    std::set<StepShape> full_steps;
    for (int i = 0; i < 5000; ++i) {
      StepShape step;
      step.rows = static_cast<int32_t>(i % 2 == 0 ? budget : 1 + random() % budget);
      step.logit_rows = static_cast<int32_t>(random() % (step.rows + 1));
      step.draws = static_cast<int32_t>(random() % 4 == 0 ? random() % (budget + 1) : step.logit_rows);
      const StepShape filled = FilledUp(step, most);
      const std::string text = std::to_string(step.rows) + " rows, " + std::to_string(step.logit_rows) + " of logits, " +
                               std::to_string(step.draws) + " draws of " + std::to_string(budget);
      ASSERT_TRUE(filled.rows >= step.rows && filled.rows <= budget) << text;
      ASSERT_TRUE(filled.logit_rows >= step.logit_rows && filled.logit_rows <= filled.rows) << text;
      ASSERT_TRUE(filled.draws >= step.draws && filled.draws <= budget) << text;
      ASSERT_EQ(filled.logit_rows == 0, step.logit_rows == 0) << text;
      ASSERT_EQ(filled.draws == 0, step.draws == 0) << text;
      ASSERT_LT(filled.logit_rows - step.logit_rows, std::max(32, filled.rows / 16)) << text;
      if (step.logit_rows > 0 && 64 * step.logit_rows <= filled.rows) {
        ASSERT_LE(filled.logit_rows, std::max(32, filled.rows / 32)) << text;
      }
      ASSERT_EQ(FilledUp(filled, most), filled) << text;
      if (step.rows == budget) {
        ASSERT_EQ(filled.rows, budget) << "full steps have no row in vain";
        if (step.draws == step.logit_rows) full_steps.insert(filled);
      }
    }
    EXPECT_LE(full_steps.size(), 33u) << budget;
  }
  // Steps of 8,192 rows with the prompts of 32 samples each.
  const auto full = [](int32_t logit_rows, int32_t draws) {
    return FilledUp({.rows = 8192, .logit_rows = logit_rows, .draws = draws}, kMost);
  };
  EXPECT_EQ(full(1, 32), (StepShape{.rows = 8192, .logit_rows = 128, .draws = 128}));
  EXPECT_EQ(full(97, 128), (StepShape{.rows = 8192, .logit_rows = 128, .draws = 128}));
  EXPECT_EQ(full(98, 160), (StepShape{.rows = 8192, .logit_rows = 128, .draws = 256}));
  EXPECT_EQ(full(300, 331), (StepShape{.rows = 8192, .logit_rows = 512, .draws = 512}));
  EXPECT_EQ(full(513, 513), (StepShape{.rows = 8192, .logit_rows = 1024, .draws = 1024}));
}

// Says how many there are.
class CountedGraph final : public Graph {
 public:
  explicit CountedGraph(int* alive) : alive_(alive) { ++*alive_; }
  ~CountedGraph() override { --*alive_; }

 private:
  int* alive_;
};

StepClass ClassOf(int32_t rows) { return {.shape = Decoding(rows), .draws_plainly = true}; }
// Of two groups of layers, of which the second has one launch for all steps.
LaunchKeys Keys(uint64_t key) { return {attention::LaunchKey{key}, attention::LaunchKey{7}}; }

TEST(StepGraphs, AShapeThatComesAgainIsCapturedForEachLaunchKey) {
  StepGraphs graphs(8);
  int alive = 0;
  EXPECT_EQ(graphs.Find(ClassOf(8), Keys(0)), nullptr) << "the first step of a class";
  EXPECT_EQ(graphs.num_graphs(), 0);
  StepGraphs::Captured* const first = graphs.Find(ClassOf(8), Keys(1));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->graph, nullptr);
  first->graph = std::make_unique<CountedGraph>(&alive);
  StepGraphs::Captured* const other = graphs.Find(ClassOf(8), Keys(0));
  ASSERT_NE(other, nullptr);
  EXPECT_NE(other, first);
  other->graph = std::make_unique<CountedGraph>(&alive);
  EXPECT_EQ(graphs.Find(ClassOf(8), Keys(1)), first);
  EXPECT_EQ(graphs.Find(ClassOf(8), Keys(0)), other);
  EXPECT_EQ(graphs.Find({.shape = Decoding(8), .draws_plainly = false}, Keys(0)), nullptr) << "other kernels draw";
  EXPECT_EQ(graphs.Find({.shape = {.rows = 16, .logit_rows = 8, .draws = 8}, .draws_plainly = true}, Keys(0)), nullptr);
  EXPECT_EQ(graphs.num_graphs(), 2);
  EXPECT_EQ(alive, 2);
}

TEST(StepGraphs, NoneIsCapturedIfNoneIsKept) {
  StepGraphs graphs(0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(graphs.Find(ClassOf(8), Keys(0)), nullptr);
  EXPECT_EQ(graphs.num_classes(), 0);
}

TEST(StepGraphs, TheClassAskedForLeastRecentlyIsForgotten) {
  StepGraphs graphs(3);
  int alive = 0;
  const auto run = [&](int32_t rows, uint64_t key) {  // whether as a graph that was there
    StepGraphs::Captured* const captured = graphs.Find(ClassOf(rows), Keys(key));
    if (captured == nullptr) return false;
    const bool is_there = captured->graph != nullptr;
    if (!is_there) captured->graph = std::make_unique<CountedGraph>(&alive);
    return is_there;
  };
  for (const int32_t rows : {1, 2, 4}) {
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(run(rows, 0));
  }
  EXPECT_EQ(alive, 3);
  EXPECT_TRUE(run(1, 0));
  EXPECT_FALSE(run(8, 0));
  EXPECT_EQ(alive, 3) << "a class costs a graph when it comes again";
  EXPECT_FALSE(run(8, 0));
  EXPECT_EQ(alive, 3);
  EXPECT_TRUE(run(1, 0));
  EXPECT_TRUE(run(4, 0));
  EXPECT_TRUE(run(8, 0));
  EXPECT_FALSE(run(2, 0)) << "forgotten: it runs without a graph first";
  EXPECT_EQ(alive, 3);
  EXPECT_FALSE(run(2, 0));
  EXPECT_TRUE(run(2, 0));

  // A class with more graphs than are kept.
  StepGraphs one(1);
  EXPECT_EQ(one.Find(ClassOf(8), Keys(0)), nullptr);
  for (uint64_t key = 0; key < 6; ++key) {
    StepGraphs::Captured* const captured = one.Find(ClassOf(8), Keys(key));
    ASSERT_NE(captured, nullptr);
    EXPECT_EQ(captured->graph, nullptr);
    captured->graph = std::make_unique<CountedGraph>(&alive);
    EXPECT_EQ(one.num_graphs(), 1);
  }
  EXPECT_EQ(alive, 4);
}

// Random steps: never more graphs than asked for, and what is counted is there.
TEST(StepGraphs, NumbersStayBounded) {
  std::mt19937 random(9);
  StepGraphs graphs(20);
  int alive = 0;
  for (int i = 0; i < 20'000; ++i) {
    const StepShape step = {.rows = static_cast<int32_t>(1 + random() % kMost.rows),
                            .logit_rows = 1,
                            .draws = static_cast<int32_t>(1 + random() % kMost.rows)};
    StepGraphs::Captured* const captured =
        graphs.Find({.shape = FilledUp(step, kMost), .draws_plainly = random() % 2 == 0}, Keys(random() % 2));
    if (captured != nullptr && !captured->graph) captured->graph = std::make_unique<CountedGraph>(&alive);
    ASSERT_EQ(alive, graphs.num_graphs());
    ASSERT_LE(alive, 20);
    ASSERT_LE(graphs.num_classes(), static_cast<int32_t>(StepGraphs::kMaxClasses));
  }
  EXPECT_EQ(alive, 20);
}

}  // namespace
}  // namespace coppice
