// Ranks on GPUs: what CPU threads as ranks give, in streams and in graphs, and an end where a rank does not come. On a machine with
// one GPU both ranks are on it; skips itself where there is none.
#include "ops/peer_group.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
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
#include "ops/cuda/norm.h"
#include "ops/cuda/peer_kernels.h"

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
      const Status status = ends_[rank]->Gather(Tensor(memory[rank], rows, cols), to, stream(rank));
      // Later work in the stream may write the part.
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

// Attention of heads of which both ranks have states, as it is in a step: q of all heads everywhere, then what each rank has of its
// own. In streams and in graphs, whose launches come at other moments.
TEST_F(PeerGroupTest, StatesOfPartsOfKvAreMergedWhereTheirHeadsAre) {
  struct Case {
    int64_t rows, heads, head_dim;
    DType dtype;
  };
  std::mt19937 random(4);
  for (const auto& [rows, heads, head_dim, dtype] : std::vector<Case>{
           {1, 24, 128, DType::kBF16}, {33, 3, 8, DType::kF16}, {256, 24, 128, DType::kBF16}, {2500, 5, 64, DType::kF16}}) {
    const int64_t cols = heads * head_dim;
    const auto from_float = [&](float x) { return dtype == DType::kBF16 ? BF16::FromFloat(x).bits : F16::FromFloat(x).bits; };
    const auto to_float = [&](uint16_t x) { return dtype == DType::kBF16 ? BF16{x}.ToFloat() : F16{x}.ToFloat(); };
    const auto upload = [&](int rank, const auto& values) {
      const size_t bytes = values.size() * sizeof(values[0]);
      DeviceMemory memory = devices_[rank]->Allocate(bytes).value();
      EXPECT_TRUE(devices_[rank]->Copy(memory.data(), values.data(), bytes, stream(rank)).ok());
      EXPECT_TRUE(devices_[rank]->Synchronize(stream(rank)).ok());
      return memory;
    };
    const auto fetch = [&](int rank, const DeviceMemory& memory) {
      std::vector<uint16_t> bits(memory.size() / 2);
      EXPECT_TRUE(devices_[rank]->Copy(bits.data(), memory.data(), memory.size(), stream(rank)).ok());
      EXPECT_TRUE(devices_[rank]->Synchronize(stream(rank)).ok());
      return bits;
    };
    std::vector<std::vector<uint16_t>> q(kRanks), out(kRanks);
    std::vector<std::vector<float>> lse(kRanks);
    std::vector<DeviceMemory> of_q, of_all, of_out, of_lse, of_merged;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const float value : RandomValues(rows * cols, random)) q[rank].push_back(from_float(value));
      for (const float value : RandomValues(rows * kRanks * cols, random)) out[rank].push_back(from_float(value));
      lse[rank] = RandomValues(rows * kRanks * heads, random);
      for (int64_t row = rank; row < rows; row += 3) {  // it sees nothing of the part, whose memory may hold anything
        std::fill_n(lse[rank].begin() + row * kRanks * heads, kRanks * heads, -INFINITY);
        std::fill_n(out[rank].begin() + row * kRanks * cols, kRanks * cols, from_float(NAN));
      }
      of_q.push_back(upload(rank, q[rank]));
      of_out.push_back(upload(rank, out[rank]));
      of_lse.push_back(upload(rank, lse[rank]));
      of_all.push_back(upload(rank, out[rank]));
      of_merged.push_back(upload(rank, q[rank]));
    }
    std::vector<std::vector<uint16_t>> before;
    for (const bool as_graph : {false, true}) {
      ForEach([&](int rank) -> Status {
        const auto exchange = [&]() -> Status {
          COPPICE_RETURN_IF_ERROR(ends_[rank]->AllGather({of_q[rank].data(), dtype, rows, cols, cols},
                                                         {of_all[rank].data(), dtype, rows, kRanks * cols, kRanks * cols},
                                                         stream(rank)));
          return ends_[rank]->MergeStates({.ranks = {0, kRanks},
                                           .out = {of_out[rank].data(), dtype, rows, kRanks * cols, kRanks * cols},
                                           .lse = Tensor(of_lse[rank], rows, kRanks * heads)},
                                          {of_merged[rank].data(), dtype, rows, cols, cols}, stream(rank));
        };
        if (!as_graph) return exchange();
        COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, CaptureGraph(*devices_[rank], stream(rank), exchange));
        std::mt19937 delays(rank);
        for (int launch = 0; launch < 200; ++launch) {
          if (delays() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays() % 300));
          COPPICE_RETURN_IF_ERROR(devices_[rank]->Launch(*graph, stream(rank)));
        }
        return devices_[rank]->Synchronize(stream(rank));
      });
      std::vector<std::vector<uint16_t>> merged;
      for (int rank = 0; rank < kRanks; ++rank) {
        merged.push_back(fetch(rank, of_merged[rank]));
        const std::vector<uint16_t> all = fetch(rank, of_all[rank]);
        for (int64_t i = 0; i < rows * kRanks * cols; ++i) {
          const int64_t row = i / (kRanks * cols), column = i % (kRanks * cols);
          ASSERT_EQ(all[i], q[column / cols][row * cols + column % cols]) << row << ", " << column;
        }
      }
      if (as_graph) {
        ASSERT_EQ(merged, before);
      }
      before = merged;
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int64_t i = 0; i < rows * cols; ++i) {
        const int64_t row = i / cols, column = i % cols, state = (row * kRanks + rank) * heads + column / head_dim;
        double expected = 0, total = 0, most = -INFINITY;
        for (int from = 0; from < kRanks; ++from) most = std::max(most, double{lse[from][state]});
        for (int from = 0; from < kRanks; ++from) total += std::exp(lse[from][state] - most);
        for (int from = 0; from < kRanks; ++from) {
          const double weight = std::exp(lse[from][state] - most);
          if (weight > 0) expected += weight / total * to_float(out[from][(row * kRanks + rank) * cols + column]);
        }
        ASSERT_NEAR(to_float(before[rank][i]), expected, 0.01 * std::abs(expected) + 1e-3) << row << ", " << column;
      }
    }
  }
  EXPECT_TRUE(group_->CheckDone().ok());
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

// One rank's kernels, which wait for nothing: what the other one would have sent lies in the inbox, and all its CTAs have arrived.
// Under compute-sanitizer, which runs one launch at a time, kernels that wait for each other would do so for ever; these are for
// memcheck.
class PresetPeerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSlotBytes = int64_t{1} << 20;
  static constexpr uint32_t kEpoch = 1;  // of the first kernel

  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    device_ = Device::CreateCuda(0).value();
    inbox_.slot_bytes = kSlotBytes;
    for (int rank = 0; rank < 2; ++rank) {
      inbox_.base[rank] = Zeros(4 * kSlotBytes);
      inbox_.few[rank] = Zeros(4 * cuda::kFewSlotBytes);
      arrived_[rank] = reinterpret_cast<uint32_t*>(Zeros(kArrivedWords * sizeof(uint32_t)));
    }
    failed_ = device_->Allocate(sizeof(uint32_t), MemoryKind::kHostPinned).value();
    *failed_.As<uint32_t>() = 0;
  }

  // Of `rank` before its first kernel, for which the other rank has arrived long since.
  cuda::PeerMeeting MeetingOf(int rank) {
    const std::vector<uint32_t> late(kArrivedWords, 1000);
    Write(arrived_[rank], late.data(), late.size() * sizeof(uint32_t));
    cuda::PeerMeeting meeting = {.epochs = reinterpret_cast<uint32_t*>(Zeros(cuda::kMostPeerCtas * sizeof(uint32_t))),
                                 .failed = failed_.As<uint32_t>(),
                                 .rank = rank,
                                 .ranks = 2};
    for (int other = 0; other < 2; ++other) meeting.arrived[other] = arrived_[other];
    return meeting;
  }
  // Where `at` finds what `from` sends in the first kernel.
  static std::byte* SlotOf(std::byte* const* slots, int64_t slot_bytes, int at, int from) {
    return slots[at] + ((kEpoch & 1) * 2 + from) * slot_bytes;
  }
  void ExpectEpochs(const cuda::PeerMeeting& meeting, uint32_t expected) {
    EXPECT_EQ(Read<uint32_t>(meeting.epochs, cuda::kMostPeerCtas), std::vector<uint32_t>(cuda::kMostPeerCtas, expected));
    EXPECT_EQ(*failed_.As<uint32_t>(), 0U);
  }

  std::byte* Zeros(size_t bytes) {
    memory_.push_back(device_->Allocate(bytes).value());
    EXPECT_TRUE(device_->Zero(memory_.back().data(), bytes, nullptr).ok());
    return memory_.back().data();
  }
  float* Upload(const std::vector<float>& values) {
    auto* const to = reinterpret_cast<float*>(Zeros(values.size() * sizeof(float)));
    Write(to, values.data(), values.size() * sizeof(float));
    return to;
  }
  void Write(void* to, const void* from, size_t bytes) {
    EXPECT_TRUE(device_->Copy(to, from, bytes, nullptr).ok());
    EXPECT_TRUE(device_->Synchronize(nullptr).ok());
  }
  template <class T>
  std::vector<T> Read(const void* from, int64_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(device_->Copy(values.data(), from, count * sizeof(T), nullptr).ok());
    EXPECT_TRUE(device_->Synchronize(nullptr).ok());
    return values;
  }
  static std::vector<float> SumOf(std::vector<float> a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }

  std::unique_ptr<Device> device_;
  cuda::PeerInbox inbox_;

 private:
  static constexpr int64_t kArrivedWords = int64_t{cuda::kMostPeerCtas} * kMostPeers;

  std::vector<DeviceMemory> memory_;
  uint32_t* arrived_[2] = {};
  DeviceMemory failed_;
};

TEST_F(PresetPeerTest, Sum) {
  std::mt19937 random(5);
  for (const int64_t count : {1, 577, 64 * 4096}) {
    const std::vector<float> own = RandomValues(count, random), other = RandomValues(count, random);
    const cuda::PeerMeeting meeting = MeetingOf(0);
    Write(SlotOf(inbox_.base, kSlotBytes, 0, 1), other.data(), count * sizeof(float));
    float* const x = Upload(own);
    ASSERT_TRUE(cuda::LaunchPeerAllReduce(x, count, inbox_, meeting, false, nullptr).ok());
    EXPECT_EQ(Read<float>(x, count), SumOf(own, other));
    EXPECT_EQ(Read<float>(SlotOf(inbox_.base, kSlotBytes, 1, 0), count), own);
    ExpectEpochs(meeting, kEpoch);
  }
}

// Few rows, whose words have the epoch beside them, and many.
TEST_F(PresetPeerTest, SumWithTheNorm) {
  std::mt19937 random(6);
  constexpr int64_t kCols = 2048;
  for (const int64_t rows : {3, 100}) {
    const int64_t count = rows * kCols;
    const std::vector<float> first = RandomValues(count, random), own = RandomValues(count, random),
                             other = RandomValues(count, random);
    const cuda::PeerMeeting meeting = MeetingOf(0);
    Write(SlotOf(inbox_.base, kSlotBytes, 0, 1), other.data(), count * sizeof(float));
    if (rows <= cuda::kMostFewRows) {
      std::vector<uint32_t> flagged;
      for (const float value : other) {
        flagged.push_back(std::bit_cast<uint32_t>(value));
        flagged.push_back(kEpoch);
      }
      Write(SlotOf(inbox_.few, cuda::kFewSlotBytes, 0, 1), flagged.data(), flagged.size() * sizeof(uint32_t));
    }
    float *const x = Upload(first), *const weight = Upload(std::vector<float>(kCols, 1));
    const DeviceTensor of_x = {x, DType::kF32, rows, kCols, kCols};
    const DeviceTensor normed = {Zeros(2 * count), DType::kBF16, rows, kCols, kCols};
    const NormArgs norm = {.kind = NormKind::kRms, .weight = {weight, kCols}};
    const cuda::PeerTerms terms = {.terms = Upload(own), .stride = kCols, .dtype = DType::kF32};
    ASSERT_TRUE(
        cuda::LaunchPeerAddNorm(terms, x, cuda::ParamsOf(of_x, norm, normed), normed.dtype, rows, inbox_, meeting, false, nullptr)
            .ok());
    EXPECT_EQ(Read<float>(x, count), SumOf(first, SumOf(own, other)));
    ExpectEpochs(meeting, kEpoch);
    double squares = 0;
    for (const uint16_t bits : Read<uint16_t>(normed.data, count)) squares += std::pow(BF16{bits}.ToFloat(), 2);
    EXPECT_NEAR(squares / static_cast<double>(count), 1, 0.01);
  }
}

TEST_F(PresetPeerTest, GatherAndBroadcast) {
  std::mt19937 random(7);
  const std::vector<float> left = RandomValues(10 * 300, random), right = RandomValues(10 * 300, random);
  const cuda::PeerMeeting meeting = MeetingOf(0);
  float* const all = Upload(std::vector<float>(10 * 600));
  ASSERT_TRUE(cuda::LaunchPeerAllGather({.part = {Upload(left), Upload(right)},
                                         .rows = 10,
                                         .part_cols = 300,
                                         .part_stride = 300,
                                         .all = all,
                                         .all_cols = 600,
                                         .all_stride = 600},
                                        meeting, false, nullptr)
                  .ok());
  const std::vector<float> gathered = Read<float>(all, 10 * 600);
  for (int64_t i = 0; i < std::ssize(gathered); ++i) {
    const int64_t row = i / 600, col = i % 600;
    ASSERT_EQ(gathered[i], (col < 300 ? left : right)[row * 300 + col % 300]);
  }
  ExpectEpochs(meeting, kEpoch + 1);

  const cuda::PeerMeeting of_other = MeetingOf(1);
  Write(SlotOf(inbox_.base, kSlotBytes, 1, 0), left.data(), left.size() * sizeof(float));
  float* const words = Upload(right);
  ASSERT_TRUE(
      cuda::LaunchPeerBroadcast(reinterpret_cast<uint32_t*>(words), std::ssize(left), inbox_, of_other, false, nullptr).ok());
  EXPECT_EQ(Read<float>(words, std::ssize(left)), left);
  ExpectEpochs(of_other, kEpoch);
}

TEST(PeerGroup, MoreRanksThanItHasPlaceForAreRefused) {
  const std::vector<int> ordinals(kMostPeers + 1, 0);
  EXPECT_EQ(MakePeerGroup(ordinals, 1).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice::ops
