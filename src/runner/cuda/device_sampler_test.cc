// Draws on a CUDA device against the host's Sampler, on the same logits. Skips itself where there is no device. Layer: runner/cuda.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/thread_pool.h"
#include "runner/device_sampler.h"
#include "runner/philox.h"
#include "runner/sampler.h"

namespace coppice {
namespace {

class DeviceSamplerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>> device = Device::CreateCuda(0);
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = *std::move(device);
  }

  // Draws `count` tokens of each row on the device, sample i at position 7 * i, and as many on the host.
  struct Both {
    std::vector<TokenDraw> device, host;  // by row, then sample
  };
  Both DrawAll(const std::vector<float>& logits, int32_t vocab, const SamplingParams& params, int32_t count) {
    const int32_t rows = static_cast<int32_t>(logits.size() / vocab), draws = rows * count;
    const auto sampler = DeviceSampler::Create(device_.get(), {.max_draws = draws, .max_rows = rows, .vocab_size = vocab}).value();
    const DeviceMemory memory = device_->Allocate(logits.size() * sizeof(float)).value();
    EXPECT_TRUE(device_->Copy(memory.data(), logits.data(), logits.size() * sizeof(float), nullptr).ok());
    EXPECT_TRUE(device_->Synchronize(Stream{nullptr}).ok());

    StepBatch batch;
    batch.parameters.push_back({.params = params});
    batch.slot_edits.push_back({.kind = SlotEdit::Kind::kSet, .slot = 0, .index = 0});
    SamplingSlots slots;
    slots.Edit(batch, {});
    std::vector<int32_t> draw_rows;
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < count; ++i) {
        batch.draws.push_back({.row = row, .slot = 0, .sample = i, .position = 7 * i});
        draw_rows.push_back(row);
      }
    }
    EXPECT_TRUE(DeviceSampler::Takes(batch, slots));
    Both both{std::vector<TokenDraw>(draws), std::vector<TokenDraw>(draws)};
    const ConstDeviceTensor tensor = {memory.data(), DType::kF32, rows, vocab, vocab};
    EXPECT_TRUE(sampler->SetDraws(1, batch, draw_rows, draws, slots, nullptr).ok());
    EXPECT_TRUE(sampler->DrawTokens(tensor, draws, nullptr).ok());
    EXPECT_TRUE(sampler->Fetch(1, draws, nullptr).ok());
    EXPECT_TRUE(sampler->Wait(1, both.device).ok());

    Sampler host(&threads_, vocab);
    std::vector<SampleTask> tasks;
    for (int32_t i = 0; i < draws; ++i) {
      both.host[i].sample = i % count;
      tasks.push_back({.logits = std::span(logits).subspan(size_t{1} * (i / count) * vocab, vocab),
                       .params = &params,
                       .position = static_cast<uint32_t>(7 * (i % count)),
                       .draws = std::span(both.host).subspan(i, 1)});
    }
    host.Run(tasks, {});
    return both;
  }

  static std::vector<float> RandomLogits(int32_t rows, int32_t vocab, float deviation, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> logits(static_cast<size_t>(rows) * vocab);
    for (float& logit : logits) logit = normal(random);
    return logits;
  }

  std::unique_ptr<Device> device_;
  ThreadPool threads_{16};
};

// Where a draw's number falls in the distribution that the parameters leave, computed in double: the distance from `token`'s part
// of it, of the whole.
class Reference {
 public:
  Reference(std::span<const float> logits, const SamplingParams& p) : params_(p), places_(logits.size(), -1) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    if (p.top_k > 0 || p.top_p < 1 || p.min_p > 0) {
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    }
    const float max = *std::ranges::max_element(logits);
    const auto weight = [&](int32_t token) { return std::exp((static_cast<double>(logits[token]) - max) / p.temperature); };
    if (p.top_k > 0) order.resize(std::min<size_t>(order.size(), p.top_k));
    double all = 0, kept = 0;
    for (const int32_t token : order) all += weight(token);
    for (const int32_t token : order) {
      if (!through_.empty() && (kept >= p.top_p * all || (p.min_p > 0 && weight(token) < p.min_p))) break;
      places_[token] = static_cast<int32_t>(through_.size());
      through_.push_back(kept += weight(token));
    }
  }
  double DistanceFrom(int32_t token, uint32_t sample, uint32_t position) const {
    const int32_t place = places_[token];
    if (place < 0) return 1;
    const double number = UniformAt(params_.seed, sample, position) * through_.back();
    const double begin = place == 0 ? 0 : through_[place - 1];
    return std::max({begin - number, number - through_[place], 0.0}) / through_.back();
  }

 private:
  const SamplingParams params_;
  std::vector<int32_t> places_;  // by token; -1: filtered out
  std::vector<double> through_;  // cumulative weights
};

TEST_F(DeviceSamplerTest, DrawsWhatTheHostDraws) {
  const SamplingParams params[] = {
      {.temperature = 1, .seed = 1},
      {.temperature = 0.8f, .seed = 2},
      {.temperature = 0, .seed = 3},
      {.temperature = 1, .top_k = 1, .seed = 4},
      {.temperature = 0.7f, .top_k = 40, .seed = 5},
      {.temperature = 1, .top_p = 0.9f, .seed = 6},
      {.temperature = 1, .min_p = 0.05f, .seed = 7},
      {.temperature = 0.9f, .top_p = 0.95f, .top_k = 100, .min_p = 0.01f, .seed = uint64_t{1} << 40},
      {.temperature = 1.5f, .top_p = 0.999f, .seed = 9},
      {.temperature = 1, .top_k = 1 << 20, .seed = 10},
  };
  constexpr int32_t kRows = 2, kDraws = 500;
  for (const int32_t vocab : {1, 5, 256, 1000, 49152, 128256}) {
    for (const float deviation : {0.5f, 3.0f}) {
      const std::vector<float> logits = RandomLogits(kRows, vocab, deviation, static_cast<uint32_t>(vocab));
      for (const SamplingParams& p : params) {
        const Both both = DrawAll(logits, vocab, p, kDraws);
        std::optional<Reference> reference;
        int32_t different = 0;
        for (size_t i = 0; i < both.host.size(); ++i) {
          const TokenDraw &device = both.device[i], &host = both.host[i];
          ASSERT_GE(device.token, 0);
          ASSERT_LT(device.token, vocab);
          if (device.token == host.token) {
            ASSERT_NEAR(device.logprob, host.logprob, 1e-5f * (1 + std::abs(host.logprob)));
            continue;
          }
          // A number at the end of a token's part may fall on either side of it: two sums of floats differ in their last bits.
          ++different;
          ASSERT_NE(p.temperature, 0);
          const std::span<const float> row = std::span(logits).subspan(i / kDraws * vocab, vocab);
          reference.emplace(row, p);
          const uint32_t sample = static_cast<uint32_t>(i % kDraws);
          ASSERT_LE(reference->DistanceFrom(device.token, sample, 7 * sample), 1e-5)
              << "vocab " << vocab << " deviation " << deviation << " temperature " << p.temperature << " top_k " << p.top_k
              << " top_p " << p.top_p << " min_p " << p.min_p << ": " << device.token << " instead of " << host.token;
        }
        EXPECT_LE(different, kRows * kDraws / 50);  // where 100,000 tokens are as probable as each other
      }
    }
  }
}

// Each of the 49,152 ends of tokens' parts lies a few 1e-9 apart on host and device, which sum floats in other orders.
TEST_F(DeviceSamplerTest, FewDrawsDiffer) {
  constexpr int32_t kVocab = 49152, kDraws = 20000, kRows = 5;
  int64_t different = 0;
  for (const float temperature : {0.8f, 1.0f}) {
    const std::vector<float> logits = RandomLogits(kRows, kVocab, 4, 11);
    const Both both = DrawAll(logits, kVocab, {.temperature = temperature, .seed = 12}, kDraws);
    for (size_t i = 0; i < both.host.size(); ++i) different += both.device[i].token != both.host[i].token;
  }
  EXPECT_LE(different, 2 * kRows * kDraws / 2000);
}

TEST_F(DeviceSamplerTest, EqualLogitsGoById) {
  std::vector<float> logits(3000, 1.0f);
  for (const SamplingParams& p : {SamplingParams{.temperature = 0}, SamplingParams{.top_k = 7, .seed = 3},
                                  SamplingParams{.top_p = 0.25f, .seed = 4}, SamplingParams{.min_p = 1, .seed = 5}}) {
    const Both both = DrawAll(logits, 3000, p, 500);
    for (size_t i = 0; i < both.host.size(); ++i) ASSERT_EQ(both.device[i].token, both.host[i].token) << i << " top_k " << p.top_k;
  }
}

TEST_F(DeviceSamplerTest, RowsWithoutADistributionSaySo) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const SamplingParams& p : {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_p = 0.5f}}) {
      std::vector<float> logits = RandomLogits(1, 1000, 1, 5);
      logits[700] = bad;
      EXPECT_EQ(DrawAll(logits, 1000, p, 1).device.front().token, -1);
    }
  }
  std::vector<float> nothing(1000, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(DrawAll(nothing, 1000, {}, 1).device.front().token, -1);
  nothing[3] = 0;  // the only one that there is
  EXPECT_EQ(DrawAll(nothing, 1000, {}, 1).device.front().token, 3);
}

TEST_F(DeviceSamplerTest, ATokenStaysOnTheDeviceForTheNextStep) {
  const auto sampler = DeviceSampler::Create(device_.get(), {.max_draws = 4, .max_rows = 4, .vocab_size = 3}).value();
  const std::vector<float> logits = {0, 9, 0, 0, 0, 9};
  const DeviceMemory memory = device_->Allocate(logits.size() * sizeof(float)).value();
  ASSERT_TRUE(device_->Copy(memory.data(), logits.data(), logits.size() * sizeof(float), nullptr).ok());
  StepBatch batch;
  batch.parameters.push_back({.params = {.temperature = 0}});
  batch.slot_edits.push_back({.kind = SlotEdit::Kind::kSet});
  batch.draws = {{.row = 0}, {.row = 1}};
  SamplingSlots slots;
  slots.Edit(batch, {});
  const std::vector<int32_t> rows = {0, 1};
  ASSERT_TRUE(sampler->SetDraws(1, batch, rows, 4, slots, nullptr).ok());  // two more that draw nothing
  ASSERT_TRUE(sampler->DrawTokens({memory.data(), DType::kF32, 2, 3, 3}, 4, nullptr).ok());
  const DeviceMemory ids = device_->Allocate(3 * sizeof(int32_t)).value();
  const std::vector<StepBatch::DrawnToken> drawn = {{.row = 0, .draw = {1, 1}}, {.row = 2, .draw = {1, 0}}};
  ASSERT_TRUE(sampler->TakeDrawn(2, drawn, {ids.As<int32_t>(), 3}, nullptr).ok());
  std::vector<int32_t> host(3);
  ASSERT_TRUE(device_->Copy(host.data(), ids.data(), 3 * sizeof(int32_t), nullptr).ok());
  ASSERT_TRUE(device_->Synchronize(Stream{nullptr}).ok());
  EXPECT_EQ(host, (std::vector<int32_t>{2, 0, 1}));
}

}  // namespace
}  // namespace coppice
