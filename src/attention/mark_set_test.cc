// Every mark is visited once, in order, marks made on the way among them. Layer: attention, tests.
#include "attention/mark_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace coppice::attention {
namespace {

TEST(MarkSet, VisitsInOrderWhatIsMarkedOnTheWay) {
  for (const int32_t positions : {1, 63, 64, 65, 200}) {
    std::vector<uint64_t> memory(16);
    Arena arena(reinterpret_cast<std::byte*>(memory.data()));
    MarkSet marks;
    marks.Layout(arena, positions);
    std::mt19937 rng(positions);
    const auto pick = [&](int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(rng); };
    for (int round = 0; round < 50; ++round) {
      std::set<int32_t> expected;
      marks.Clear();
      for (int32_t i = 0; i < 5; ++i) {
        const int32_t at = pick(0, positions - 1);
        marks.Mark(at);
        expected.insert(at);
      }
      std::vector<int32_t> visited;
      marks.ForEach([&](int32_t at) {
        visited.push_back(at);
        if (at + 1 == positions || pick(0, 1) == 0) return;
        const int32_t next = pick(at + 1, positions - 1);
        marks.Mark(next);
        expected.insert(next);
      });
      EXPECT_TRUE(std::ranges::equal(visited, expected));
      for (int32_t at = 0; at < positions; ++at) EXPECT_EQ(marks.Marked(at), expected.contains(at));

      visited.clear();
      marks.ForEachBackwards([&](int32_t at) {
        visited.push_back(at);
        if (at == 0 || pick(0, 1) == 0) return;
        const int32_t next = pick(0, at - 1);
        marks.Mark(next);
        expected.insert(next);
      });
      EXPECT_TRUE(std::equal(visited.begin(), visited.end(), expected.rbegin(), expected.rend()));
    }
    marks.Clear();
    marks.MarkFirst(positions);
    int32_t count = 0;
    marks.ForEach([&](int32_t at) { EXPECT_EQ(at, count++); });
    EXPECT_EQ(count, positions);
  }
}

}  // namespace
}  // namespace coppice::attention
