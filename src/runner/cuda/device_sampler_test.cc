// Draws on a CUDA device against the host's Sampler, on the same logits. Skips itself where there is no device. Layer: runner/cuda.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coppice/core/types.h"
#include "core/device.h"
#include "core/math.h"
#include "core/thread_pool.h"
#include "model/safetensors.h"
#include "runner/batch_sampler.h"
#include "runner/device_sampler.h"
#include "runner/philox.h"
#include "runner/sampler.h"
#include "runner/sampling_slots.h"

namespace coppice {
namespace {

// The host's sampler and the device's, given the same steps.
class SamplerPair {
 public:
  SamplerPair(Device* device, Executor* executor, const DeviceSampler::Limits& limits,
              std::shared_ptr<DraftDistributions> distributions = nullptr)
      : device_(device),
        vocab_(limits.vocab_size),
        host_sampler_(executor, limits.vocab_size, distributions),
        device_sampler_(DeviceSampler::Create(device, limits, std::move(distributions)).value()) {}

  // `logits`: of the rows that the batch wants something of.
  void Step(const StepBatch& batch, std::span<const float> logits) {
    ++step_;
    slots_.Edit(batch, host.draws);
    host.Reset(batch);
    const auto rows = static_cast<int64_t>(host_sampler_.FindLogitRows(batch).size());
    ASSERT_EQ(logits.size(), static_cast<size_t>(rows * vocab_));
    host_sampler_.Sample(MatrixView<const float>(logits.data(), rows, vocab_), batch, slots_, &host);

    if (memory_.size() < logits.size_bytes()) memory_ = device_->Allocate(logits.size_bytes()).value();
    if (!logits.empty()) {
      ASSERT_TRUE(device_->Copy(memory_.data(), logits.data(), logits.size_bytes(), nullptr).ok());
    }
    const ConstDeviceTensor tensor = {memory_.data(), DType::kF32, rows, vocab_, vocab_};
    const auto draws = static_cast<int32_t>(batch.draws.size());
    LogitRows logit_rows;
    logit_rows.Find(batch);
    device.Reset(batch);
    ASSERT_TRUE(device_sampler_->EditSlots(batch, nullptr).ok());
    ASSERT_TRUE(device_sampler_->SetWanted(step_, batch, logit_rows, draws, nullptr).ok());
    const auto rows_at_a_time = static_cast<int32_t>(step_ % 2 == 0 ? rows : CeilDiv<int64_t>(rows, 3));  // at once, or in parts
    for (int32_t first = 0; first < rows; first += rows_at_a_time) {
      const ConstDeviceTensor part = tensor.Rows(first, std::min<int64_t>(rows_at_a_time, rows - first));
      ASSERT_TRUE(device_sampler_->Draw(part, first, draws, nullptr).ok());
      ASSERT_TRUE(device_sampler_->Score(part, first, nullptr).ok());
    }
    ASSERT_TRUE(device_sampler_->Select(nullptr).ok());
    ASSERT_TRUE(device_sampler_->Fetch(step_, batch, nullptr).ok());
    const Status waited = device_sampler_->Wait(step_, &device);
    ASSERT_TRUE(waited.ok()) << waited.ToString();
  }
  int64_t step() const { return step_; }

  SampledStep host, device;  // of the last step

 private:
  Device* const device_;
  const int32_t vocab_;
  SamplingSlots slots_;
  BatchSampler host_sampler_;
  std::unique_ptr<DeviceSampler> device_sampler_;
  DeviceMemory memory_;
  int64_t step_ = 0;
};

// A slot that is set with what `sampling` says and nothing said so far.
void Set(int32_t slot, SlotSampling sampling, StepBatch* batch) {
  batch->slot_edits.push_back(
      {.kind = SlotEdit::Kind::kSet, .slot = slot, .index = static_cast<int32_t>(batch->parameters.size())});
  batch->parameters.push_back(std::move(sampling));
}

class DeviceSamplerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>> device = Device::CreateCuda(0);
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = *std::move(device);
  }

  // Draws `count` samples' tokens of each row on the device, at position kPosition, and as many on the host.
  static constexpr int32_t kPosition = 7;
  struct Both {
    std::vector<TokenDraw> device, host;  // by row, then sample
  };
  Both DrawAll(const std::vector<float>& logits, int32_t vocab, const SamplingParams& params, int32_t count) {
    const int32_t rows = static_cast<int32_t>(logits.size() / vocab), draws = rows * count;
    SamplerPair pair(device_.get(), &threads_, {.max_draws = draws, .max_rows = rows, .max_slots = 1, .vocab_size = vocab});
    StepBatch batch;
    Set(0, {.params = params}, &batch);
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < count; ++i) batch.draws.push_back({.row = row, .slot = 0, .sample = i, .position = kPosition});
    }
    pair.Step(batch, logits);
    return {pair.device.draws, pair.host.draws};
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

// Selections of 1 to 256 beams in one step, some of whose rows ban tokens or hold no distribution, against the host's scores of all
// continuations. Sums of floats differ in their last bits, so what scores alike may change places.
TEST_F(DeviceSamplerTest, SelectsTheContinuationsThatTheHostSelects) {
  constexpr float kTolerance = 2e-4f;
  for (const int32_t vocab : {3, 300, 49152}) {
    for (const bool stochastic : {false, true}) {
      const std::vector<int32_t> widths = vocab == 49152 ? std::vector{4, 16, 256} : std::vector{1, 3, 16, 100};
      const int32_t rows = std::accumulate(widths.begin(), widths.end(), 0);
      std::vector<float> logits = RandomLogits(rows, vocab, 2.0f, static_cast<uint32_t>(vocab));
      for (float& logit : logits) logit = std::round(logit * 16) / 16;  // many are equal
      SamplerPair pair(device_.get(), &threads_, {.max_draws = rows, .max_rows = rows, .max_slots = 512, .vocab_size = vocab});
      for (int round = 0; round < 2; ++round) {
        StepBatch batch;
        if (round == 0) Set(0, {.params = {.temperature = 0.7f, .seed = 5}, .end_ids = {1, 2}}, &batch);
        if (round == 1) std::fill_n(logits.begin() + vocab, vocab, std::nanf(""));  // of the second selection
        for (const int32_t width : widths) {
          const int32_t of_beam = std::min(width + 2, vocab + 3);
          batch.selections.push_back({.beam_begin = static_cast<int32_t>(batch.beams.size()),
                                      .beam_count = width,
                                      .wanted = 3 * width,
                                      .wanted_of_beam = of_beam,
                                      .selected_begin = batch.num_selected,
                                      .stochastic = stochastic});
          batch.num_selected += 3 * width;
          for (int32_t b = 0; b < width; ++b) {
            const int32_t draw = static_cast<int32_t>(batch.draws.size());
            batch.draws.push_back({.row = draw, .slot = 0, .sample = b, .position = 9, .beam = draw, .bans_end_ids = b % 3 == 1});
            batch.beams.push_back(
                {.draw = draw, .score = -0.5f * static_cast<float>(b), .perturbed = -0.25f * static_cast<float>(b)});
          }
        }
        pair.Step(batch, logits);
        const std::vector<SelectedToken>&device = pair.device.selected, &host = pair.host.selected;
        ASSERT_EQ(device.size(), host.size());
        std::map<std::pair<int32_t, int32_t>, SelectedToken> scores;  // by beam and token, of those that the host selected
        for (const SelectedToken& one : host) scores[{one.beam, one.token}] = one;
        std::set<std::pair<int32_t, int32_t>> seen;
        for (size_t i = 0; i < host.size(); ++i) {
          ASSERT_EQ(device[i].beam < 0, host[i].beam < 0) << i;
          if (host[i].beam < 0) continue;
          ASSERT_NEAR(device[i].score, host[i].score, kTolerance) << i;
          ASSERT_TRUE(seen.emplace(device[i].beam, device[i].token).second) << i;
          const auto known = scores.find({device[i].beam, device[i].token});
          if (known == scores.end()) continue;  // it scores like the last ones
          ASSERT_NEAR(device[i].score, known->second.score, kTolerance) << i;
          ASSERT_NEAR(device[i].logprob, known->second.logprob, kTolerance) << i;
        }
        for (size_t d = 0; d < batch.draws.size(); ++d) ASSERT_EQ(pair.device.draws[d].token, pair.host.draws[d].token) << d;
      }
    }
  }
}

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
          ASSERT_LE(reference->DistanceFrom(device.token, sample, kPosition), 1e-5)
              << "vocab " << vocab << " deviation " << deviation << " temperature " << p.temperature << " top_k " << p.top_k
              << " top_p " << p.top_p << " min_p " << p.min_p << ": " << device.token << " instead of " << host.token;
        }
        EXPECT_LE(different, kRows * kDraws / 50);  // where 100,000 tokens are as probable as each other
      }
    }
  }
}

// Rows of SmolLM2-135M's logits, [rows, 49152], after some prompts; kept as f16.
std::vector<float> SmolLm2Logits() {
  const auto file = SafetensorsFile::Open(std::string(COPPICE_TEST_DATA) + "/smollm2/logits.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  const std::vector<uint8_t> bytes = file->Read<uint8_t>("logits_f16").value();
  std::vector<F16> halves(bytes.size() / sizeof(F16));
  std::memcpy(halves.data(), bytes.data(), bytes.size());
  std::vector<float> logits;
  for (const F16 half : halves) logits.push_back(half.ToFloat());
  return logits;
}

// Draws of SmolLM2's own distributions, 10^7 with COPPICE_LONG_TEST. Host and device sum 49,152 floats in other orders, so that a
// token's part of the distribution ends a few 1e-9 apart: a draw may differ where its number falls between the two.
TEST_F(DeviceSamplerTest, FewDrawsDiffer) {
  const std::vector<float> logits = SmolLm2Logits();
  constexpr int32_t kVocab = 49152;
  const int32_t rows = static_cast<int32_t>(logits.size() / kVocab);
  const int64_t wanted = std::getenv("COPPICE_LONG_TEST") != nullptr ? 10'000'000 : 200'000;
  constexpr int32_t kDraws = 10'000;  // of a row in a step, at one position
  SamplerPair pair(device_.get(), &threads_, {.max_draws = kDraws * rows, .max_rows = rows, .max_slots = 2, .vocab_size = kVocab});
  const SamplingParams params[] = {{.temperature = 0.8f, .seed = 12}, {.temperature = 1, .seed = 12}};
  std::vector<Reference> references;
  for (const SamplingParams& p : params) {
    for (int32_t row = 0; row < rows; ++row)
      references.emplace_back(std::span(logits).subspan(size_t{1} * row * kVocab, kVocab), p);
  }
  StepBatch batch;
  Set(0, {.params = params[0]}, &batch);
  Set(1, {.params = params[1]}, &batch);
  int64_t drawn = 0, different = 0;
  for (int32_t position = 0; drawn < wanted; ++position) {
    const int32_t slot = position % 2;
    batch.draws.clear();
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < kDraws; ++i) batch.draws.push_back({.row = row, .slot = slot, .sample = i, .position = position});
    }
    pair.Step(batch, logits);
    batch.ClearEdits();
    for (size_t i = 0; i < batch.draws.size(); ++i) {
      if (pair.device.draws[i].token == pair.host.draws[i].token) continue;
      ++different;
      const Reference& reference = references[slot * rows + batch.draws[i].row];
      const auto sample = static_cast<uint32_t>(batch.draws[i].sample), at = static_cast<uint32_t>(position);
      ASSERT_LE(reference.DistanceFrom(pair.device.draws[i].token, sample, at), 1e-5);
      ASSERT_LE(reference.DistanceFrom(pair.host.draws[i].token, sample, at), 1e-5);
    }
    drawn += std::ssize(batch.draws);
  }
  EXPECT_LT(different, drawn / 10'000);
  RecordProperty("draws", std::to_string(drawn));
  RecordProperty("different", std::to_string(different));
  std::cout << different << " of " << drawn << " draws differ\n";
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

// Slots come, fork and go, with counts that the device keeps for itself: greedy choices under penalties, biases and bans are the
// host's, since adjusted logits are the same to the bit.
TEST_F(DeviceSamplerTest, AdjustedLogitsAreTheHosts) {
  constexpr int32_t kVocab = 1500, kSlots = 12, kSteps = 400;
  SamplerPair pair(device_.get(), &threads_, {.max_draws = kSlots, .max_rows = kSlots, .max_slots = kSlots, .vocab_size = kVocab});
  std::mt19937 random(3);
  const auto chance = [&](int one_in) { return random() % one_in == 0; };
  const auto token = [&] { return static_cast<int32_t>(random() % 40); };  // few, so that they come again
  std::vector<bool> in_use(kSlots), draws(kSlots);
  std::vector<int32_t> draw_of(kSlots, -1);  // in the step before
  int64_t compared = 0;
  for (int32_t step = 0; step < kSteps; ++step) {
    StepBatch batch;
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      if (in_use[slot] && draw_of[slot] >= 0)
        batch.slot_edits.push_back(
            {.kind = SlotEdit::Kind::kAddDraw, .slot = slot, .draw = {.step = step, .index = draw_of[slot]}});
      if (in_use[slot] && chance(12)) {
        batch.slot_edits.push_back({.kind = SlotEdit::Kind::kFree, .slot = slot});
        in_use[slot] = false;
      }
      if (!in_use[slot] && chance(2)) {
        const int32_t from = static_cast<int32_t>(random() % kSlots);
        in_use[slot] = true;
        if (from != slot && in_use[from] && chance(2)) {
          batch.slot_edits.push_back({.kind = SlotEdit::Kind::kFork, .slot = slot, .index = from});
          continue;
        }
        SlotSampling sampling{.params = {.temperature = 0}};
        if (chance(2)) sampling.params.presence_penalty = 0.7f;
        if (chance(2)) sampling.params.frequency_penalty = 0.31f;
        if (chance(2)) sampling.params.repetition_penalty = 1.37f;
        if (chance(3)) sampling.params.logit_bias = {{token(), 2.5f}, {token() + 40, -3.1f}, {99, -INFINITY}, {7, -1e9f}};
        if (chance(3)) sampling.end_ids = {token(), token()};
        Set(slot, sampling, &batch);
        SlotEdit& edit = batch.slot_edits.back();
        edit.token_begin = static_cast<int32_t>(batch.history.size());
        edit.token_count = static_cast<int32_t>(random() % 30);
        edit.num_prompt = edit.token_count > 0 ? static_cast<int32_t>(random() % edit.token_count) : 0;
        for (int32_t i = 0; i < edit.token_count; ++i) batch.history.push_back(token());
      } else if (in_use[slot] && chance(4)) {
        batch.slot_edits.push_back({.kind = SlotEdit::Kind::kAdd,
                                    .slot = slot,
                                    .token_begin = static_cast<int32_t>(batch.history.size()),
                                    .token_count = 2});
        batch.history.push_back(token());
        batch.history.push_back(token());
      }
    }
    int32_t rows = 0;
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      draw_of[slot] = -1;
      if (!in_use[slot] || chance(5)) continue;
      draw_of[slot] = static_cast<int32_t>(batch.draws.size());
      batch.draws.push_back({.row = rows++, .slot = slot, .position = step, .bans_end_ids = chance(2)});
      if (!chance(3)) continue;
      Drafting drafting{.path_begin = static_cast<int32_t>(batch.draft_tokens.size()),
                        .path_count = static_cast<int32_t>(random() % 6)};
      for (int32_t i = 0; i < drafting.path_count; ++i) batch.draft_tokens.push_back(token());
      batch.draws.back().drafting = static_cast<int32_t>(batch.drafting.size());
      batch.drafting.push_back(drafting);
    }
    // The tokens that penalties move lie close together above all others.
    std::vector<float> logits = RandomLogits(rows, kVocab, 1, static_cast<uint32_t>(step));
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < 80; ++i)
        logits[size_t{1} * row * kVocab + i] = std::abs(logits[size_t{1} * row * kVocab + i]) + (i % 3 == 0 ? 2.0f : -4.0f);
    }
    pair.Step(batch, logits);
    for (size_t i = 0; i < batch.draws.size(); ++i, ++compared) {
      ASSERT_EQ(pair.device.draws[i].token, pair.host.draws[i].token) << "step " << step << " draw " << i;
      ASSERT_NEAR(pair.device.draws[i].logprob, pair.host.draws[i].logprob, 1e-5f * (1 + std::abs(pair.host.draws[i].logprob)));
    }
  }
  EXPECT_GT(compared, 2000);
}

TEST_F(DeviceSamplerTest, MasksAndBansLeaveWhatTheHostLeaves) {
  constexpr int32_t kVocab = 1000, kRows = 5;
  SamplerPair pair(device_.get(), &threads_, {.max_draws = 3000, .max_rows = kRows, .max_slots = kRows, .vocab_size = kVocab});
  StepBatch batch;
  Set(0, {.params = {.seed = 1}}, &batch);
  Set(1, {.params = {.temperature = 0.7f, .top_p = 0.8f, .seed = 2}, .end_ids = {3, 4}}, &batch);
  Set(2, {.params = {.temperature = 0}}, &batch);
  Set(3, {.params = {.top_k = 5, .logit_bias = {{5, -INFINITY}, {6, 3.0f}}, .seed = 3}}, &batch);
  Set(4, {.params = {.seed = 4}}, &batch);
  const auto words = static_cast<size_t>(MaskWords(kVocab));
  batch.masks.resize(3 * words);
  for (int32_t t = 0; t < kVocab; t += 3) batch.masks[t / 32] |= 1u << t % 32;  // the first allows every third token
  batch.masks[words + 999 / 32] |= 1u << 999 % 32;                              // the second one alone, the third nothing
  const int32_t masks[kRows] = {0, 0, 1, -1, 2};
  for (int32_t row = 0; row < kRows; ++row) {
    for (int32_t i = 0; i < 600; ++i)
      batch.draws.push_back({.row = row, .slot = row, .sample = i, .position = 5, .mask = masks[row], .bans_end_ids = row == 1});
  }
  pair.Step(batch, RandomLogits(kRows, kVocab, 2, 8));
  int32_t different = 0;
  for (size_t i = 0; i < batch.draws.size(); ++i) {
    const int32_t row = batch.draws[i].row, token = pair.device.draws[i].token;
    different += token != pair.host.draws[i].token;
    switch (row) {
      case 0: EXPECT_EQ(token % 3, 0); break;
      case 1:
        EXPECT_EQ(token % 3, 0);
        EXPECT_NE(token, 3);
        break;
      case 2: EXPECT_EQ(token, 999); break;
      case 3: EXPECT_NE(token, 5); break;
      default: EXPECT_EQ(token, kNothingAllowed);
    }
  }
  EXPECT_LE(different, 3);
}

TEST_F(DeviceSamplerTest, MostProbableTokensAndScoresAreTheHosts) {
  for (const int32_t vocab : {3, 20, 257, 49152}) {
    constexpr int32_t kRows = 6;
    SamplerPair pair(device_.get(), &threads_, {.max_draws = kRows, .max_rows = kRows, .max_slots = 1, .vocab_size = vocab});
    StepBatch batch;
    Set(0, {.params = {.temperature = 0, .logit_bias = {{0, 50.0f}}}}, &batch);
    std::vector<float> logits = RandomLogits(kRows, vocab, 3, static_cast<uint32_t>(vocab));
    std::ranges::fill(std::span(logits).subspan(vocab, vocab), 0.25f);  // all equal
    for (int32_t t = 0; t < vocab; ++t) {
      if (t != 1 && t != vocab - 1) logits[2 * vocab + t] = -INFINITY;  // two tokens
      logits[3 * vocab + t] = static_cast<float>(t % 7);                // equal ones across the edge
      logits[4 * vocab + t] = t == 2 ? NAN : 0;                         // no distribution
    }
    for (int32_t row = 0; row < kRows; ++row) {
      const auto top = static_cast<uint8_t>(std::min(vocab, row == 5 ? 1 : kMaxTopLogprobs));
      batch.draws.push_back(
          {.row = row, .slot = 0, .wants_rank = row != 1, .top_logprobs = top, .top_begin = batch.num_top_logprobs});
      batch.num_top_logprobs += top;
      if (row == 4) continue;
      // More scores than rows, and the most probable tokens beside those of every second row.
      const auto beside = static_cast<uint8_t>(row % 2 == 0 ? std::min(vocab, 5) : 0);
      for (int32_t token = 0; token < 3 * kRows; ++token) {
        batch.scores.push_back({.row = row,
                                .token = (row + token) % vocab,
                                .wants_rank = true,
                                .temperature = row % 3 == 0 ? 0.7f : 1.0f,
                                .top_logprobs = beside,
                                .top_begin = batch.num_top_logprobs});
      }
      batch.num_top_logprobs += beside;
    }
    pair.Step(batch, logits);
    for (size_t i = 0; i < pair.host.top_logprobs.size(); ++i) {
      ASSERT_EQ(pair.device.top_logprobs[i].token, pair.host.top_logprobs[i].token) << "vocab " << vocab << " entry " << i;
      ASSERT_NEAR(pair.device.top_logprobs[i].logprob, pair.host.top_logprobs[i].logprob, 1e-4);
    }
    for (size_t i = 0; i < pair.host.draws.size(); ++i) EXPECT_EQ(pair.device.draws[i].rank, pair.host.draws[i].rank) << i;
    EXPECT_EQ(pair.device.score_ranks, pair.host.score_ranks);
    for (size_t i = 0; i < pair.host.scores.size(); ++i) {
      if (std::isinf(pair.host.scores[i])) {
        EXPECT_EQ(pair.device.scores[i], pair.host.scores[i]);
      } else {
        EXPECT_NEAR(pair.device.scores[i], pair.host.scores[i], 1e-4) << "vocab " << vocab << " score " << i;
      }
    }
  }
}

TEST_F(DeviceSamplerTest, ProcessedLogprobsAreTheHosts) {
  for (const int32_t vocab : {7, 3000, 49152}) {
    SamplingParams params[] = {{.seed = 1},
                               {.temperature = 0},
                               {.temperature = 0.7f, .seed = 2},
                               {.temperature = 1.3f, .top_k = 5, .seed = 3},
                               {.top_p = 0.8f, .seed = 4},
                               {.min_p = 0.1f, .seed = 5},
                               {.temperature = 0.9f, .top_p = 0.95f, .top_k = 200, .seed = 6},
                               {.temperature = 0.8f, .logit_bias = {{1, 4.0f}, {2, -INFINITY}}, .seed = 7},
                               {.presence_penalty = 1.5f, .repetition_penalty = 1.2f, .seed = 8},
                               {.temperature = 0, .logit_bias = {{3, 20.0f}}}};
    constexpr int32_t kSlots = 10;
    SamplerPair pair(device_.get(), &threads_, {.max_draws = 100, .max_rows = kSlots, .max_slots = kSlots, .vocab_size = vocab});
    StepBatch batch;
    batch.history = {4, 5, 5};
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      params[slot].logprobs_mode = LogprobsMode::kProcessed;
      Set(slot, {.params = params[slot]}, &batch);
      if (slot == 8) {
        batch.slot_edits.back().token_count = 3;
        batch.slot_edits.back().num_prompt = 1;
      }
    }
    for (int32_t row = 0; row < kSlots; ++row) {
      const auto top = static_cast<uint8_t>(std::min(vocab, row % 2 == 0 ? kMaxTopLogprobs : 3));
      for (int32_t i = 0; i < 10; ++i) {
        batch.draws.push_back({.row = row,
                               .slot = row,
                               .sample = i,
                               .position = 3,
                               .wants_rank = true,
                               .top_logprobs = top,
                               .top_begin = batch.num_top_logprobs});
      }
      batch.num_top_logprobs += top;
    }
    pair.Step(batch, RandomLogits(kSlots, vocab, 3, static_cast<uint32_t>(vocab) + 1));
    int32_t different = 0;
    for (size_t i = 0; i < batch.draws.size(); ++i) {
      if (pair.device.draws[i].token != pair.host.draws[i].token) {
        ++different;
        continue;
      }
      EXPECT_NEAR(pair.device.draws[i].logprob, pair.host.draws[i].logprob, 1e-4) << "vocab " << vocab << " draw " << i;
      EXPECT_EQ(pair.device.draws[i].rank, pair.host.draws[i].rank) << "vocab " << vocab << " draw " << i;
    }
    EXPECT_LE(different, 2);
    for (size_t i = 0; i < pair.host.top_logprobs.size(); ++i) {
      ASSERT_EQ(pair.device.top_logprobs[i].token, pair.host.top_logprobs[i].token) << "vocab " << vocab << " entry " << i;
      ASSERT_NEAR(pair.device.top_logprobs[i].logprob, pair.host.top_logprobs[i].logprob, 1e-4);
    }
  }
}

// A draft model's draws leave the distribution that they came from; the target's draws take the draft or something else of it.
TEST_F(DeviceSamplerTest, DraftsAreDrawnAndVerifiedAsOnTheHost) {
  constexpr int32_t kVocab = 3000, kDrafts = 400;
  const SamplingParams params[] = {{.temperature = 0.9f, .seed = 21},
                                   {.temperature = 1, .top_p = 0.9f, .top_k = 50, .seed = 22},
                                   {.temperature = 1.2f, .min_p = 0.1f, .seed = 23},
                                   {.temperature = 0, .seed = 24}};
  for (const SamplingParams& p : params) {
    Result<std::unique_ptr<Device>> same = Device::CreateCuda(0);
    const auto distributions = DraftDistributions::CreateOn(*std::move(same), kDrafts, kVocab).value();
    SamplerPair pair(device_.get(), &threads_, {.max_draws = kDrafts, .max_rows = kDrafts, .max_slots = 1, .vocab_size = kVocab},
                     distributions);
    StepBatch batch;
    Set(0, {.params = p}, &batch);
    for (int32_t i = 0; i < kDrafts; ++i) {
      batch.draws.push_back({.row = i, .slot = 0, .sample = i, .position = 9, .drafting = i});
      batch.drafting.push_back({.distribution = i});
    }
    const std::vector<float> logits = RandomLogits(kDrafts, kVocab, 2, 31);
    pair.Step(batch, logits);
    if (p.temperature > 0) {
      std::vector<float> row(kVocab);
      for (int32_t i = 0; i < kDrafts; i += 40) {
        ASSERT_TRUE(device_->Copy(row.data(), distributions->device_rows() + size_t{1} * i * kVocab, row.size() * 4, nullptr).ok());
        ASSERT_TRUE(device_->Synchronize(Stream{nullptr}).ok());
        for (int32_t t = 0; t < kVocab; ++t) ASSERT_NEAR(row[t], distributions->Row(i)[t], 1e-6f + 1e-5f * row[t]);
      }
    }
    int32_t different = 0, accepted = 0;
    for (int32_t i = 0; i < kDrafts; ++i) different += pair.device.draws[i].token != pair.host.draws[i].token;
    EXPECT_LE(different, 2);

    // The target's logits are near the draft's.
    const std::vector<float> noise = RandomLogits(kDrafts, kVocab, 0.5f, 32);
    std::vector<float> target(logits);
    for (size_t i = 0; i < target.size(); ++i) target[i] += noise[i];
    batch.ClearEdits();
    for (int32_t i = 0; i < kDrafts; ++i) batch.drafting[i] = {.proposal = i, .token = pair.host.draws[i].token};
    pair.Step(batch, target);
    different = 0;
    for (int32_t i = 0; i < kDrafts; ++i) {
      different += pair.device.draws[i].token != pair.host.draws[i].token;
      accepted += pair.device.draws[i].token == batch.drafting[i].token;
      ASSERT_GE(pair.device.draws[i].token, 0);
    }
    EXPECT_LE(different, 3) << "temperature " << p.temperature << " top_p " << p.top_p << " min_p " << p.min_p;
    EXPECT_GT(accepted, kDrafts / 4);
    EXPECT_LT(accepted, kDrafts);
  }
}

TEST_F(DeviceSamplerTest, ATokenStaysOnTheDeviceForTheNextStep) {
  const auto sampler =
      DeviceSampler::Create(device_.get(), {.max_draws = 4, .max_rows = 4, .max_slots = 1, .vocab_size = 3}, nullptr).value();
  const std::vector<float> logits = {0, 9, 0, 0, 0, 9};
  const DeviceMemory memory = device_->Allocate(logits.size() * sizeof(float)).value();
  ASSERT_TRUE(device_->Copy(memory.data(), logits.data(), logits.size() * sizeof(float), nullptr).ok());
  StepBatch batch;
  Set(0, {.params = {.temperature = 0}}, &batch);
  batch.draws = {{.row = 0}, {.row = 1}};
  LogitRows rows;
  rows.Find(batch);
  ASSERT_TRUE(sampler->EditSlots(batch, nullptr).ok());
  ASSERT_TRUE(sampler->SetWanted(1, batch, rows, 4, nullptr).ok());  // two more that draw nothing
  ASSERT_TRUE(sampler->Draw({memory.data(), DType::kF32, 2, 3, 3}, 0, 4, nullptr).ok());
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
