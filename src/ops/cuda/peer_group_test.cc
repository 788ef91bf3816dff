// Ranks on GPUs: what CPU threads as ranks give, in streams and in graphs, and an end where a rank does not come. On a machine with
// one GPU both ranks are on it; skips itself where there is none.
#include "ops/peer_group.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/device.h"

namespace coppice::ops {
namespace {

class PeerGroupTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 2;
  static constexpr int64_t kMaxBytes = int64_t{1} << 20;

  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    const std::vector<int> ordinals = {0, count > 1 ? 1 : 0};
    Result<std::unique_ptr<CommunicatorGroup>> group = MakePeerGroup(ordinals, kMaxBytes);
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    group_ = *std::move(group);
    for (int rank = 0; rank < kRanks; ++rank) {
      ends_.push_back(group_->MakeRank(rank));
      devices_.push_back(Device::CreateCuda(ordinals[rank]).value());
      streams_.push_back(devices_[rank]->CreateStream().value());
    }
  }

  // Each rank on a thread of its own.
  void ForEach(const std::function<Status(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        if (rank > 0) group_->EnterThread(rank);
        const Status status = body(rank);
        EXPECT_TRUE(status.ok()) << status.ToString();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  DeviceMemory Upload(int rank, const std::vector<float>& values) {
    DeviceMemory memory = devices_[rank]->Allocate(values.size() * sizeof(float)).value();
    EXPECT_TRUE(devices_[rank]->Copy(memory.data(), values.data(), memory.size(), stream(rank)).ok());
    EXPECT_TRUE(devices_[rank]->Synchronize(stream(rank)).ok());
    return memory;
  }
  std::vector<float> Fetch(int rank, const DeviceMemory& memory) {
    std::vector<float> values(memory.size() / sizeof(float));
    EXPECT_TRUE(devices_[rank]->Copy(values.data(), memory.data(), memory.size(), stream(rank)).ok());
    EXPECT_TRUE(devices_[rank]->Synchronize(stream(rank)).ok());
    return values;
  }
  Stream stream(int rank) const { return streams_[rank]->get(); }

  std::unique_ptr<CommunicatorGroup> group_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Communicator>> ends_;
  std::vector<std::unique_ptr<OwnedStream>> streams_;
};

std::vector<float> RandomValues(int64_t count, std::mt19937& random) {
  std::vector<float> values(count);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random) * std::exp(3 * normal(random));
  return values;
}
DeviceTensor Tensor(const DeviceMemory& memory, int64_t rows, int64_t cols) {
  return {memory.data(), DType::kF32, rows, cols, cols};
}

TEST_F(PeerGroupTest, SumsAreThoseInTheOrderOfRanks) {
  std::mt19937 random(1);
  // One value, no whole packs, several CTAs, more than the group exchanges at a time.
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 577}, {1, 4096}, {64, 4096}, {301, 2048}}) {
    std::vector<std::vector<float>> values;
    std::vector<DeviceMemory> memory;
    for (int rank = 0; rank < kRanks; ++rank) {
      values.push_back(RandomValues(rows * cols, random));
      memory.push_back(Upload(rank, values[rank]));
    }
    ForEach([&](int rank) { return ends_[rank]->AllReduce(Tensor(memory[rank], rows, cols), stream(rank)); });
    std::vector<float> expected = values[0];
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += values[1][i];
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Fetch(rank, memory[rank]), expected) << rows << " x " << cols;
  }
  EXPECT_TRUE(group_->CheckDone().ok());
}

// Terms in bf16, f16 and f32, both norms, with and without one, few rows and more than there are CTAs or than a slot holds.
TEST_F(PeerGroupTest, SumsGoWithTheNormThatFollows) {
  std::mt19937 random(4);
  struct Case {
    int64_t rows, cols;
    DType terms, normed;
    NormKind kind;
    bool norms;
  };
  const Case cases[] = {
      {1, 4096, DType::kBF16, DType::kBF16, NormKind::kRms, true},  {7, 36, DType::kF16, DType::kF16, NormKind::kLayer, true},
      {256, 2048, DType::kF32, DType::kBF16, NormKind::kRms, true}, {2500, 512, DType::kBF16, DType::kBF16, NormKind::kLayer, true},
      {3, 9000, DType::kF32, DType::kF16, NormKind::kRms, true},    {5, 4096, DType::kBF16, DType::kBF16, NormKind::kRms, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(std::to_string(c.rows) + " x " + std::to_string(c.cols) + " " + std::string(Name(c.terms)));
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> terms(kRanks, std::vector<float>(c.rows * c.cols));
    std::vector<float> x(c.rows * c.cols), weight(c.cols), bias(c.cols);
    for (auto* values : {&x, &weight, &bias}) {
      for (float& value : *values) value = normal(random);
    }
    std::vector<DeviceMemory> of_terms, of_x, of_normed, of_weight, of_bias;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::byte> encoded(terms[rank].size() * SizeOf(c.terms));
      for (size_t i = 0; i < terms[rank].size(); ++i) {
        float value = normal(random);
        if (c.terms == DType::kBF16) {
          const BF16 rounded = BF16::FromFloat(value);
          value = rounded.ToFloat();
          std::memcpy(&encoded[2 * i], &rounded.bits, 2);
        } else if (c.terms == DType::kF16) {
          const F16 rounded = F16::FromFloat(value);
          value = rounded.ToFloat();
          std::memcpy(&encoded[2 * i], &rounded.bits, 2);
        } else {
          std::memcpy(&encoded[4 * i], &value, 4);
        }
        terms[rank][i] = value;
      }
      of_terms.push_back(devices_[rank]->Allocate(encoded.size()).value());
      ASSERT_TRUE(devices_[rank]->Copy(of_terms[rank].data(), encoded.data(), encoded.size(), stream(rank)).ok());
      ASSERT_TRUE(devices_[rank]->Synchronize(stream(rank)).ok());
      of_x.push_back(Upload(rank, x));
      of_weight.push_back(Upload(rank, weight));
      of_bias.push_back(Upload(rank, bias));
      of_normed.push_back(devices_[rank]->Allocate(c.rows * c.cols * 2).value());
    }
    ForEach([&](int rank) {
      auto& peer = dynamic_cast<PeerRank&>(*ends_[rank]);
      const ConstDeviceTensor given = {of_terms[rank].data(), c.terms, c.rows, c.cols, c.cols};
      DeviceTensor normed = {of_normed[rank].data(), c.normed, c.rows, c.cols, c.cols};
      if (!c.norms) normed.data = nullptr;
      const NormArgs norm = {
          .kind = c.kind, .weight = {of_weight[rank].As<float>(), c.cols}, .bias = {of_bias[rank].As<float>(), c.cols}};
      EXPECT_TRUE(peer.TakesAddNorm(given, Tensor(of_x[rank], c.rows, c.cols), norm, normed));
      return peer.AddNorm(given, Tensor(of_x[rank], c.rows, c.cols), norm, normed, stream(rank));
    });
    for (size_t i = 0; i < x.size(); ++i) x[i] += terms[0][i] + terms[1][i];
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(Fetch(rank, of_x[rank]), x);  // bit for bit on both ranks
      if (!c.norms) continue;
      std::vector<uint16_t> bits(c.rows * c.cols);
      ASSERT_TRUE(devices_[rank]->Copy(bits.data(), of_normed[rank].data(), 2 * bits.size(), stream(rank)).ok());
      ASSERT_TRUE(devices_[rank]->Synchronize(stream(rank)).ok());
      for (int64_t row = 0; row < c.rows; ++row) {
        const float* const values = &x[row * c.cols];
        double mean = 0, squares = 0;
        if (c.kind == NormKind::kLayer) mean = std::accumulate(values, values + c.cols, 0.0) / static_cast<double>(c.cols);
        for (int64_t i = 0; i < c.cols; ++i) squares += (values[i] - mean) * (values[i] - mean);
        const double scale = 1 / std::sqrt(squares / static_cast<double>(c.cols) + 1e-5);
        for (int64_t i = 0; i < c.cols; ++i) {
          const double expected = (values[i] - mean) * scale * weight[i] + bias[i];
          const uint16_t got = bits[row * c.cols + i];
          const float actual = c.normed == DType::kBF16 ? BF16{got}.ToFloat() : F16{got}.ToFloat();
          ASSERT_NEAR(actual, expected, 0.01 * std::abs(expected) + 1e-3) << row << ", " << i;
        }
      }
    }
  }
  EXPECT_TRUE(group_->CheckDone().ok());
}

TEST_F(PeerGroupTest, PartsLieSideBySideAtTheRankThatWantsThem) {
  std::mt19937 random(2);
  for (const auto& [rows, cols, all_cols] :
       std::vector<std::array<int64_t, 3>>{{1, 6000, 12000}, {5, 32, 63}, {70, 4096, 8188}, {300, 7, 13}}) {
    std::vector<std::vector<float>> values;
    std::vector<DeviceMemory> memory;
    for (int rank = 0; rank < kRanks; ++rank) {
      values.push_back(RandomValues(rows * cols, random));
      memory.push_back(Upload(rank, values[rank]));
    }
    const DeviceMemory all = Upload(0, std::vector<float>(rows * all_cols, -1));
    ForEach([&](int rank) {
      DeviceTensor to = Tensor(all, rows, all_cols);
      if (rank > 0) to.data = nullptr;
      const Status status = ends_[rank]->AllGather(Tensor(memory[rank], rows, cols), to, stream(rank));
      // What follows in the stream may write the part.
      return status.ok() ? devices_[rank]->Zero(memory[rank].data(), memory[rank].size(), stream(rank)) : status;
    });
    const std::vector<float> gathered = Fetch(0, all);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < all_cols; ++col) {
        ASSERT_EQ(gathered[row * all_cols + col], values[col / cols][row * cols + col % cols]) << row << ", " << col;
      }
    }
    for (int rank = 0; rank < kRanks; ++rank) (void)devices_[rank]->Synchronize(stream(rank));
  }
}

TEST_F(PeerGroupTest, TheFirstRanksWordsBecomeThoseOfAll) {
  std::mt19937 random(3);
  for (const int64_t count : {1, 7, 2048, 5000}) {
    const std::vector<float> first = RandomValues(count, random);
    std::vector<DeviceMemory> memory;
    for (int rank = 0; rank < kRanks; ++rank) memory.push_back(Upload(rank, rank == 0 ? first : RandomValues(count, random)));
    ForEach([&](int rank) { return ends_[rank]->Broadcast(memory[rank].data(), count * 4, stream(rank)); });
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(Fetch(rank, memory[rank]), first);
  }
}

// Each rank launches its own graphs, with delays of its own between them: no value is read before it is there or after it is gone.
// 10^5 sums with COPPICE_LONG_TEST.
TEST_F(PeerGroupTest, GraphsOfManySumsWithDelaysBetweenThem) {
  constexpr int64_t kSumsOfGraph = 20, kCols = 512;
  const int64_t launches = (std::getenv("COPPICE_LONG_TEST") != nullptr ? 100'000 : 2'000) / kSumsOfGraph;
  // x <- x_0 + x_1 on both ranks, so that n sums of ones give 2^n; scaled back by a copy of the first values.
  std::vector<DeviceMemory> x, first;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (auto* of : {&x, &first}) of->push_back(Upload(rank, std::vector<float>(40 * kCols, static_cast<float>(rank + 1))));
  }
  ForEach([&](int rank) -> Status {
    std::mt19937 random(rank);
    std::unique_ptr<Graph> graphs[2];
    for (int g = 0; g < 2; ++g) {  // of few rows and of many, which other CTAs add up
      const auto sums = [&, rows = g == 0 ? 1 : 40]() -> Status {
        COPPICE_RETURN_IF_ERROR(devices_[rank]->Copy(x[rank].data(), first[rank].data(), x[rank].size(), stream(rank)));
        for (int64_t i = 0; i < kSumsOfGraph; ++i) {
          COPPICE_RETURN_IF_ERROR(ends_[rank]->AllReduce(Tensor(x[rank], rows, kCols), stream(rank)));
        }
        return OkStatus();
      };
      COPPICE_ASSIGN_OR_RETURN(graphs[g], CaptureGraph(*devices_[rank], stream(rank), sums));
    }
    for (int64_t launch = 0; launch < launches; ++launch) {
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      COPPICE_RETURN_IF_ERROR(devices_[rank]->Launch(*graphs[launch % 3 == 0], stream(rank)));
      if (launch % 10 != 0) continue;
      const std::vector<float> values = Fetch(rank, x[rank]);
      const int64_t rows = launch % 3 == 0 ? 40 : 1;
      const float expected = 3 * std::exp2(static_cast<float>(kSumsOfGraph - 1));
      if (std::any_of(values.begin(), values.begin() + rows * kCols, [&](float value) { return value != expected; })) {
        return Internal("a sum is wrong in launch " + std::to_string(launch) + " of rank " + std::to_string(rank));
      }
    }
    return devices_[rank]->Synchronize(stream(rank));
  });
  EXPECT_TRUE(group_->CheckDone().ok());
}

TEST_F(PeerGroupTest, ARankThatDoesNotComeEndsTheWaitOfTheOthers) {
  std::vector<DeviceMemory> memory;
  for (int rank = 0; rank < kRanks; ++rank) memory.push_back(Upload(rank, std::vector<float>(100, 1)));
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 0; call < 3; ++call) ASSERT_TRUE(ends_[0]->AllReduce(Tensor(memory[0], 1, 100), stream(0)).ok());
  ASSERT_TRUE(devices_[0]->Synchronize(stream(0)).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  const Status status = group_->CheckDone();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("rank 1, cuda:"), std::string::npos) << status.message();

  group_->Abort(status);
  group_->Reset();
  EXPECT_TRUE(group_->CheckDone().ok());
  for (int rank = 0; rank < kRanks; ++rank) memory[rank] = Upload(rank, std::vector<float>(100, static_cast<float>(rank + 1)));
  ForEach([&](int rank) { return ends_[rank]->AllReduce(Tensor(memory[rank], 1, 100), stream(rank)); });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(Fetch(rank, memory[rank]), std::vector<float>(100, 3));
}

TEST(PeerGroup, MoreRanksThanItHasPlaceForAreRefused) {
  const std::vector<int> ordinals(kMostPeers + 1, 0);
  EXPECT_EQ(MakePeerGroup(ordinals, 1).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice::ops
