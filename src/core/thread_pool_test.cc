#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
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

TEST(ThreadPool, WhatATaskThrowsOnAnyWorkerIsThrownOnceAllAreDone) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int64_t failing = 0; failing < 64; ++failing) {
      std::atomic<int64_t> ran = 0;
      const auto loop = [&](int64_t first) {
        pool.ParallelFor(64, [&, first](int64_t i, int) {
          ran.fetch_add(1);
          if (i >= first) throw std::bad_alloc();
        });
      };
      EXPECT_THROW(loop(failing), std::bad_alloc);  // of one task, or of many
      EXPECT_EQ(ran, threads > 1 ? 64 : failing + 1);
      EXPECT_NO_THROW(loop(64));
    }
  }
}

TEST(ThreadPool, DefaultUsesAtLeastOneWorker) { EXPECT_GE(ThreadPool().num_workers(), 1); }

TEST(ThreadPool, NumbersOutsideTheRangeAreRefused) {
  for (const int threads : {-1, ThreadPool::kMaxThreads + 1, 100000}) {
    const Status status = ThreadPool::Create(threads).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_NE(status.message().find("num_threads is " + std::to_string(threads)), std::string::npos) << status.message();
  }
  EXPECT_EQ((*ThreadPool::Create(3))->num_workers(), 3);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COPPICE_ADDRESS_SPACE_IS_TAKEN 1  // sanitizers map terabytes
#endif
#ifndef COPPICE_ADDRESS_SPACE_IS_TAKEN
// In a process of its own: 4,096 stacks do not fit into 1 GiB. Those that started end before the status is there.
TEST(ThreadPoolDeathTest, ThreadsThatTheSystemDoesNotStartAreAStatus) {
  EXPECT_EXIT(
      {
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = 1 << 30;
        setrlimit(RLIMIT_AS, &limit);
        const Status status = ThreadPool::Create(ThreadPool::kMaxThreads).status();
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        std::exit(status.code() == StatusCode::kResourceExhausted ? 0 : 1);
      },
      testing::ExitedWithCode(0), "RESOURCE_EXHAUSTED: the system does not start 4096 threads");
}
#endif

}  // namespace
}  // namespace coppice
