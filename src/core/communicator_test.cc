// Ranks of threads: sums in the order of ranks, parts side by side, and what becomes of all where one fails.
#include "core/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "core/thread_pool.h"

namespace coppice {
namespace {

// Ranks with a pool each.
class Ranks {
 public:
  explicit Ranks(int size) {
    for (int rank = 0; rank < size; ++rank) {
      pools_.push_back(std::make_unique<ThreadPool>(rank % 2 + 1));
      executors_.push_back(pools_.back().get());
    }
    group_ = MakeThreadGroup(executors_);
  }
  CommunicatorGroup& group() { return *group_; }

  // Each rank on a thread of its own; their statuses.
  std::vector<Status> Run(const std::function<Status(Communicator&)>& body) {
    std::vector<Status> statuses(group_->size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < group_->size(); ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Communicator> communicator = group_->MakeRank(rank);
        statuses[rank] = body(*communicator);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

 private:
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<Executor*> executors_;
  std::unique_ptr<CommunicatorGroup> group_;
};

DeviceTensor Tensor(std::vector<float>& values, int64_t rows, int64_t cols) {
  return {values.data(), DType::kF32, rows, cols, cols};
}

TEST(Communicator, SumsAreThoseInTheOrderOfRanks) {
  for (const int size : {2, 3, 5}) {
    Ranks ranks(size);
    for (const int64_t rows : {1, 7, 300}) {
      const int64_t cols = rows == 1 ? 3 : 577;  // fewer elements than ranks, several tasks, no whole cache lines
      std::mt19937 random(size);
      std::normal_distribution<float> normal;
      std::vector<std::vector<float>> values(size, std::vector<float>(rows * cols));
      for (auto& of_rank : values) {
        for (float& value : of_rank) value = normal(random) * std::exp(3 * normal(random));
      }
      std::vector<float> expected = values[0];
      for (int rank = 1; rank < size; ++rank) {
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += values[rank][i];
      }
      const auto statuses =
          ranks.Run([&](Communicator& rank) { return rank.AllReduce(Tensor(values[rank.rank()], rows, cols), nullptr); });
      for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.ToString();
      for (int rank = 0; rank < size; ++rank) EXPECT_EQ(values[rank], expected) << "rank " << rank << " of " << size;
    }
  }
}

TEST(Communicator, PartsLieSideBySideWhereTheyAreWanted) {
  constexpr int64_t kRows = 5, kCols = 4, kAll = 10;  // of three ranks' 12 columns
  Ranks ranks(3);
  std::vector<std::vector<float>> parts(3, std::vector<float>(kRows * kCols)), all(3, std::vector<float>(kRows * kAll, -1)),
      everywhere(3, std::vector<float>(kRows * 3 * kCols, -1));
  for (int rank = 0; rank < 3; ++rank) {
    for (int64_t i = 0; i < kRows * kCols; ++i) parts[rank][i] = static_cast<float>(100 * rank + i);
  }
  const auto statuses = ranks.Run([&](Communicator& rank) {
    DeviceTensor to = Tensor(all[rank.rank()], kRows, kAll);
    if (rank.rank() > 0) to.data = nullptr;
    const ConstDeviceTensor part = Tensor(parts[rank.rank()], kRows, kCols);
    COPPICE_RETURN_IF_ERROR(rank.Gather(part, to, nullptr));
    return rank.AllGather(part, Tensor(everywhere[rank.rank()], kRows, 3 * kCols), nullptr);
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.ToString();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < 3 * kCols; ++col) {
      const auto expected = static_cast<float>(100 * (col / kCols) + row * kCols + col % kCols);
      if (col < kAll) {
        EXPECT_EQ(all[0][row * kAll + col], expected);
      }
      for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(everywhere[rank][row * 3 * kCols + col], expected);
    }
  }
  for (const int rank : {1, 2}) EXPECT_EQ(all[rank], std::vector<float>(kRows * kAll, -1));
}

// Four ranks in two runs of two, each with states of its run's heads over a part of KV: a rank has its own heads' merge.
template <class Element>
void ExpectMergedStates(DType dtype, float tolerance) {
  constexpr int kRanks = 4, kCount = 2;
  constexpr int64_t kRows = 37, kHeads = 3, kHeadDim = 8, kCols = kHeads * kHeadDim;
  const auto to_float = [](Element x) {
    if constexpr (std::is_same_v<Element, float>)
      return x;
    else
      return x.ToFloat();
  };
  const auto from_float = [](float x) {
    if constexpr (std::is_same_v<Element, float>)
      return x;
    else
      return Element::FromFloat(x);
  };
  Ranks ranks(kRanks);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<std::vector<Element>> out(kRanks, std::vector<Element>(kRows * kCount * kCols)),
      merged(kRanks, std::vector<Element>(kRows * kCols));
  std::vector<std::vector<float>> lse(kRanks, std::vector<float>(kRows * kCount * kHeads));
  for (int rank = 0; rank < kRanks; ++rank) {
    for (Element& value : out[rank]) value = from_float(normal(random));
    for (float& value : lse[rank]) value = 4 * normal(random);
    for (int64_t row = rank; row < kRows; row += 5) {  // the part has nothing for these rows; for row 20 none has
      for (int64_t head = 0; head < kCount * kHeads; ++head) lse[rank][row * kCount * kHeads + head] = -INFINITY;
      for (int64_t i = 0; i < kCount * kCols; ++i) out[rank][row * kCount * kCols + i] = from_float(NAN);
    }
  }
  for (auto& of_rank : lse) std::fill_n(of_rank.begin() + 20 * kCount * kHeads, kCount * kHeads, -INFINITY);
  const auto statuses = ranks.Run([&](Communicator& rank) {
    const int r = rank.rank();
    return rank.MergeStates({.ranks = {r / kCount * kCount, kCount},
                             .out = {out[r].data(), dtype, kRows, kCount * kCols, kCount * kCols},
                             .lse = Tensor(lse[r], kRows, kCount * kHeads)},
                            {merged[r].data(), dtype, kRows, kCols, kCols}, nullptr);
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.ToString();
  for (int rank = 0; rank < kRanks; ++rank) {
    const int first = rank / kCount * kCount;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t head = 0; head < kHeads; ++head) {
        const int64_t own = (rank - first) * kHeads + head;
        double total = 0;
        for (int from = first; from < first + kCount; ++from) total += std::exp(double{lse[from][row * kCount * kHeads + own]});
        for (int64_t d = 0; d < kHeadDim; ++d) {
          double expected = 0;
          for (int from = first; from < first + kCount; ++from) {
            const double weight = std::exp(double{lse[from][row * kCount * kHeads + own]});
            if (weight > 0) expected += weight / total * to_float(out[from][row * kCount * kCols + own * kHeadDim + d]);
          }
          EXPECT_NEAR(to_float(merged[rank][row * kCols + head * kHeadDim + d]), expected, tolerance) << rank << ", row " << row;
        }
      }
    }
  }
}

TEST(Communicator, StatesOfPartsOfKvAreMergedWhereTheirHeadsAre) {
  ExpectMergedStates<float>(DType::kF32, 1e-5f);
  ExpectMergedStates<BF16>(DType::kBF16, 0.02f);
  ExpectMergedStates<F16>(DType::kF16, 0.002f);
}

TEST(Communicator, TheFirstRanksBytesBecomeThoseOfAll) {
  Ranks ranks(3);
  std::vector<std::vector<int32_t>> values = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  const auto statuses =
      ranks.Run([&](Communicator& rank) { return rank.Broadcast(values[rank.rank()].data(), 2 * sizeof(int32_t), nullptr); });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(values, (std::vector<std::vector<int32_t>>{{1, 2, 3}, {1, 2, 6}, {1, 2, 9}}));
}

// A rank that fails leaves the others in a barrier that it never reaches.
TEST(Communicator, ARankThatFailsEndsTheCallsOfAll) {
  Ranks ranks(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<float>> values(3, std::vector<float>(1000, 1.0f));
    const int failing = round % 3, after = round % 5;
    const auto statuses = ranks.Run([&](Communicator& rank) -> Status {
      for (int call = 0; call < 6; ++call) {
        if (rank.rank() == failing && call == after) {
          const Status status = Internal("rank " + std::to_string(failing) + " lost its device");
          ranks.group().Abort(status);
          return status;
        }
        COPPICE_RETURN_IF_ERROR(rank.AllReduce(Tensor(values[rank.rank()], 10, 100), nullptr));
      }
      return OkStatus();
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.ToString(), Internal("rank " + std::to_string(failing) + " lost its device").ToString());
    }
    ranks.group().Reset();
    const auto afterwards = ranks.Run([](Communicator& rank) { return rank.Barrier(); });
    for (const Status& status : afterwards) EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(Communicator, ASingleRankHasNothingToExchange) {
  const std::unique_ptr<Communicator> rank = MakeSingleRank();
  EXPECT_EQ(rank->rank(), 0);
  EXPECT_EQ(rank->size(), 1);
  std::vector<float> values = {1, 2, 3};
  EXPECT_TRUE(rank->AllReduce(Tensor(values, 1, 3), nullptr).ok());
  EXPECT_TRUE(rank->Gather(Tensor(values, 1, 3), Tensor(values, 1, 3), nullptr).ok());
  EXPECT_TRUE(rank->AllGather(Tensor(values, 1, 3), Tensor(values, 1, 3), nullptr).ok());
  EXPECT_TRUE(rank->MergeStates({.out = Tensor(values, 1, 3)}, Tensor(values, 1, 3), nullptr).ok());
  EXPECT_TRUE(rank->Barrier().ok());
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace coppice
