#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace coppice {
namespace {

TEST(ThreadPool, RunsEachIndexOnceOverManyLoops) {
  ThreadPool pool(4);
  for (int64_t count : {0, 1, 3, 4, 5, 1000}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::vector<std::atomic<int>> hits(count);
      pool.ParallelFor(count, [&](int64_t i, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, pool.num_workers());
        hits[i].fetch_add(1);
      });
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(hits[i].load(), 1) << "index " << i << " of " << count;
    }
  }
}

TEST(ThreadPool, WritesAreVisibleAfterTheLoop) {
  ThreadPool pool(3);
  std::vector<int64_t> plain(4096);
  for (int64_t round = 1; round <= 200; ++round) {
    pool.ParallelFor(static_cast<int64_t>(plain.size()), [&](int64_t i, int) { plain[i] = round * i; });
    for (size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(plain[i], round * static_cast<int64_t>(i));
  }
}

TEST(ThreadPool, DefaultUsesAtLeastOneWorker) { EXPECT_GE(ThreadPool().num_workers(), 1); }

}  // namespace
}  // namespace coppice
