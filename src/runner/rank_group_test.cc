// Ranks as threads: each runs each task once, one that fails ends it for all, and the next task is as if nothing had been.
#include "runner/rank_group.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/thread_pool.h"

namespace coppice {
namespace {

struct Ranks {
  explicit Ranks(int size) {
    std::vector<Executor*> executors;
    for (int rank = 0; rank < size; ++rank) executors.push_back(pools.emplace_back(std::make_unique<ThreadPool>(1)).get());
    group = RankGroup::Create(MakeThreadGroup(executors)).value();
  }
  std::vector<std::unique_ptr<ThreadPool>> pools;
  std::unique_ptr<RankGroup> group;
};

TEST(RankGroup, EachRankRunsEachTaskOnceWithItsCommunicator) {
  for (const int size : {1, 2, 4}) {
    Ranks ranks(size);
    for (int run = 0; run < 200; ++run) {
      std::vector<float> sums(size);
      const Status status = ranks.group->Run([&](int rank) -> Status {
        Communicator& communicator = ranks.group->communicator(rank);
        EXPECT_EQ(communicator.rank(), rank);
        EXPECT_EQ(communicator.size(), size);
        sums[rank] += static_cast<float>(rank + 1);
        return communicator.AllReduce({&sums[rank], DType::kF32, 1, 1, 1}, nullptr);
      });
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(sums, std::vector<float>(size, static_cast<float>(size * (size + 1) / 2)));
    }
  }
}

TEST(RankGroup, ARankThatFailsOrThrowsEndsTheTaskForAll) {
  Ranks ranks(3);
  for (int run = 0; run < 60; ++run) {
    const int failing = run % 3;
    const bool throws = run % 2 == 0;
    const Status status = ranks.group->Run([&](int rank) -> Status {
      Communicator& communicator = ranks.group->communicator(rank);
      COPPICE_RETURN_IF_ERROR(communicator.Barrier());
      if (rank == failing && throws) throw std::bad_alloc();
      if (rank == failing) return Internal("rank " + std::to_string(rank));
      return communicator.Barrier();  // which the failing rank does not reach
    });
    if (throws) {
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    } else {
      EXPECT_EQ(status.message(), "rank " + std::to_string(failing));
    }
    EXPECT_TRUE(ranks.group->Run([&](int rank) { return ranks.group->communicator(rank).Barrier(); }).ok());
  }
}

}  // namespace
}  // namespace coppice
