// Blocks that changed, against a list of flags. Layer: attention/cuda, tests.
#include "attention/cuda/lower/changed_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace coppice::attention::cuda {
namespace {

using Element = std::array<std::byte, 64>;
constexpr int64_t kPerBlock = 4096 / sizeof(Element);

TEST(ChangedBlocks, RunsCoverWhatWasMarkedAndLittleElse) {
  std::mt19937 rng(7);
  for (int round = 0; round < 2000; ++round) {
    const int64_t capacity = 1 + static_cast<int64_t>(rng() % (300 * kPerBlock));
    ChangedBlocks<Element> blocks(capacity), more(capacity);
    std::vector<bool> marked(capacity);
    for (int marks = static_cast<int>(rng() % 6); marks > 0; --marks) {
      const int64_t begin = static_cast<int64_t>(rng() % capacity);
      const int64_t end = rng() % 2 == 0 ? begin + 1 : std::min<int64_t>(capacity, begin + rng() % (80 * kPerBlock));
      ChangedBlocks<Element>& to = rng() % 2 == 0 ? blocks : more;
      end == begin + 1 ? to.Mark(begin) : to.Mark(begin, end);
      std::fill(marked.begin() + begin, marked.begin() + end, true);
    }
    blocks.Add(more);
    const int64_t count = 1 + static_cast<int64_t>(rng() % capacity);
    for (int64_t begin = 0; begin < count; begin += 1 + static_cast<int64_t>(rng() % (20 * kPerBlock))) {
      const int64_t end = std::min<int64_t>(count, begin + rng() % (3 * kPerBlock));
      // Of any block that the elements lie in.
      const int64_t first = begin / kPerBlock * kPerBlock, last = std::min(capacity, (end + kPerBlock - 1) / kPerBlock * kPerBlock);
      const bool any = begin < end && std::find(marked.begin() + first, marked.begin() + last, true) != marked.begin() + last;
      ASSERT_EQ(blocks.Any(begin, end), any) << "round " << round << ", [" << begin << ", " << end << ")";
    }

    std::vector<bool> covered(capacity);
    int64_t reached = 0;
    size_t runs = 0;
    blocks.ForEachRun(count, [&](int64_t begin, int64_t end) {
      ASSERT_LT(begin, end);
      ASSERT_EQ(begin % kPerBlock, 0);
      if (runs++ > 0) {
        ASSERT_GT(begin - reached, 8 * kPerBlock);  // nearer ones are one run
      }
      reached = end;
      std::fill(covered.begin() + begin, covered.begin() + end, true);
    });
    ASSERT_LE(reached, count);
    ASSERT_LE(runs, blocks.max_runs());
    for (int64_t i = 0; i < count; ++i) ASSERT_TRUE(!marked[i] || covered[i]) << "round " << round << ", element " << i;
    // Elements without a mark near them are not copied.
    for (int64_t i = 0; i < count; ++i) {
      if (!covered[i]) continue;
      const int64_t from = std::max<int64_t>(0, i - 10 * kPerBlock), to = std::min(capacity, i + 10 * kPerBlock);
      ASSERT_NE(std::find(marked.begin() + from, marked.begin() + to, true), marked.begin() + to);
      i += kPerBlock - 1;
    }
    blocks.Clear();
    ASSERT_FALSE(blocks.Any(0, capacity));
  }
}

}  // namespace
}  // namespace coppice::attention::cuda
