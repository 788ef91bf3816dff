// Weights replaced while requests run, wait, are pinned and fail: every token is what the weights of its version say after KV of
// the same version. Around a FakeRunner, whose weight is its seed, and which checks that all KV that it reads is of that seed.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

// What one request was told.
struct Told {
  std::map<int32_t, std::vector<int32_t>> tokens;  // by sample
  std::vector<int64_t> versions;                   // of events with tokens
  std::map<int32_t, FinishReason> reasons;
  Status status;
  bool done = false;
};

// An engine whose model has the seed `kSeeds[version % 4]` after each update.
class UpdateHarness {
 public:
  static constexpr std::array<uint64_t, 4> kSeeds = {0, 11, 12, 13};

  explicit UpdateHarness(EngineConfig config) : harness_(config) {
    for (const uint64_t seed : kSeeds) {
      config.model.seed = seed;
      models_.push_back(std::make_unique<EngineHarness>(config));
    }
  }

  size_t Submit(Request request) {
    told_.push_back(std::make_unique<Told>());
    Told* const told = told_.back().get();
    request.on_event = [told](const StreamEvent& event) {
      if (!event.token_ids.empty()) told->versions.push_back(event.weight_version);
      std::vector<int32_t>& tokens = told->tokens[event.index];
      tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
      if (event.finish_reason) told->reasons[event.index] = *event.finish_reason;
      if (!event.status.ok()) told->status = event.status;
      told->done |= event.request_done;
    };
    ids_.push_back(harness_.engine().Submit(std::move(request)).value());
    return told_.size() - 1;
  }

  // Steps the engine until the update returns, where that waits for what runs.
  Result<WeightVersion> Update(UpdateWhen when) {
    const auto seed = static_cast<float>(kSeeds[(harness_.engine().weight_version().number + 1) % kSeeds.size()]);
    auto updated = std::async(std::launch::async, [&] {
      return harness_.engine().UpdateWeights(
          std::vector<WeightTensor>{
              {.name = std::string(FakeRunner::kSeedTensor), .dtype = DType::kF32, .shape = {1}, .data = &seed}},
          {.when = when, .label = "step"});
    });
    while (updated.wait_for(std::chrono::microseconds(100)) != std::future_status::ready) {
      if (!harness_.engine().Load().updating) continue;
      const Result<bool> step = harness_.engine().Step();  // its cache is not looked at: the update may be changing it
      EXPECT_TRUE(step.ok()) << step.status().ToString();
    }
    const Status status = harness_.cache().CheckIntegrity();
    EXPECT_TRUE(status.ok()) << status.message();
    return updated.get();
  }

  // That a request's tokens are those of its versions, all equal; its number of finished samples.
  int CheckTokens(size_t slot, const Request& request) {
    const Told& told = *told_[slot];
    EXPECT_TRUE(told.done);
    int finished = 0;
    for (const int64_t version : told.versions) EXPECT_EQ(version, told.versions.front());
    for (const auto& [sample, tokens] : told.tokens) {
      if (tokens.empty()) continue;
      const std::vector<int32_t> expected =
          models_[told.versions.front() % kSeeds.size()]->GreedyAfter(request.prompt_ids, request.max_tokens);
      EXPECT_LE(tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin())) << "version " << told.versions.front();
      finished += told.reasons.at(sample) == FinishReason::kLength;
    }
    return finished;
  }

  EngineHarness& harness() { return harness_; }
  Engine& engine() { return harness_.engine(); }
  const Told& told(size_t slot) const { return *told_[slot]; }
  RequestId id(size_t slot) const { return ids_[slot]; }

 private:
  std::vector<std::unique_ptr<EngineHarness>> models_;  // what each seed says
  std::vector<std::unique_ptr<Told>> told_;             // outlives the engine
  std::vector<RequestId> ids_;
  EngineHarness harness_;
};

const EngineConfig kConfig = {
    .model = {.vocab_size = 64, .max_position = 64, .num_pages = 60, .page_size = 4}, .max_running = 4, .max_batch_tokens = 16};

// Where one sample runs and the next one waits.
EngineConfig OneByOne() {
  EngineConfig config = kConfig;
  config.max_running = 1;
  return config;
}

TEST(WeightUpdate, AbortEndsWhatRunsAndWhatWaitsIsComputedWithTheNewWeights) {
  UpdateHarness harness(OneByOne());
  const Request request = Greedy(Prompt(9), 12);
  const size_t runs = harness.Submit(request), waits = harness.Submit(request);
  harness.harness().Step(3);
  const Result<WeightVersion> version = harness.Update(UpdateWhen::kAbort);
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(version->number, 1);
  EXPECT_EQ(version->label, "step");
  harness.harness().RunToEnd();
  for (const auto& [sample, reason] : harness.told(runs).reasons) EXPECT_EQ(reason, FinishReason::kCancelled) << sample;
  EXPECT_EQ(harness.CheckTokens(runs, request), 0);
  EXPECT_EQ(harness.CheckTokens(waits, request), 1);
  EXPECT_EQ(harness.told(waits).versions.front(), 1);
  EXPECT_EQ(harness.engine().Metrics().last_step.weight_version, 1);
}

TEST(WeightUpdate, WaitLetsWhatRunsFinishAndNothingElseBegins) {
  UpdateHarness harness(OneByOne());
  const Request request = Greedy(Prompt(9), 12);
  const size_t runs = harness.Submit(request), waits = harness.Submit(request);
  harness.harness().Step(3);
  EXPECT_FALSE(harness.told(runs).done);
  ASSERT_TRUE(harness.Update(UpdateWhen::kWait).ok());
  EXPECT_TRUE(harness.told(runs).done);
  EXPECT_TRUE(harness.told(waits).versions.empty());
  EXPECT_FALSE(harness.engine().Load().updating);
  harness.harness().RunToEnd();
  for (const size_t slot : {runs, waits}) {
    EXPECT_EQ(harness.CheckTokens(slot, request), 1);
    EXPECT_EQ(harness.told(slot).versions.front(), slot == waits ? 1 : 0);
  }
}

TEST(WeightUpdate, NothingCachedOutlivesIt) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(40), 4);
  const auto cached = [&] {
    const int64_t before = harness.engine().Metrics().cached_tokens;
    const size_t slot = harness.Submit(request);
    harness.harness().RunToEnd();
    EXPECT_EQ(harness.CheckTokens(slot, request), 1);
    return harness.engine().Metrics().cached_tokens - before;
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 30);
  ASSERT_TRUE(harness.Update(UpdateWhen::kWait).ok());
  harness.harness().Step();
  EXPECT_EQ(harness.engine().Metrics().pages_used, 0);
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 30);
}

TEST(WeightUpdate, APinnedPromptIsComputedAnew) {
  UpdateHarness harness(kConfig);
  const std::string path = (std::filesystem::temp_directory_path() / "coppice_weight_update_test.prefix").string();
  for (const char* name : {"kept", "let go", "taken"}) {
    Request pin = Greedy(Prompt(20, name[0]), 0);
    pin.pin_prompt_as = name;
    harness.Submit(pin);
  }
  harness.harness().RunToEnd();
  ASSERT_TRUE(harness.engine().SavePrefix("kept", path).ok());
  ASSERT_TRUE(harness.Update(UpdateWhen::kWait).ok());
  EXPECT_EQ(harness.engine().LoadPrefix("old", path, {}).code(), StatusCode::kInvalidArgument) << "KV of other weights";
  EXPECT_TRUE(harness.engine().Unpin("let go").ok());
  Request other = Greedy(Prompt(12, 77), 0);
  other.pin_prompt_as = "taken";
  harness.Submit(other);
  harness.harness().RunToEnd();

  EXPECT_TRUE(harness.engine().SavePrefix("kept", path).ok());
  EXPECT_TRUE(harness.engine().LoadPrefix("again", path, {}).ok());
  EXPECT_EQ(harness.engine().Unpin("let go").code(), StatusCode::kNotFound);
  const auto pinned = harness.harness().cache().FindPinned("taken");
  ASSERT_TRUE(pinned.has_value());
  EXPECT_EQ(pinned->tokens, Prompt(12, 77));
  const Request request = Greedy(Prompt(20, 'k'), 4);
  const size_t slot = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(slot, request), 1);
  std::filesystem::remove(path);
}

TEST(WeightUpdate, WhatIsNoUpdateChangesNothing) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(9), 12);
  const size_t slot = harness.Submit(request);
  harness.harness().Step(3);
  const float value = 1;
  const auto refused = [&](const WeightTensor& tensor) {
    return harness.engine().UpdateWeights(std::vector{tensor}, {.when = UpdateWhen::kAbort}).status().message();
  };
  EXPECT_EQ(harness.engine().UpdateWeights({}, {}).status().message(), "an update of weights has no tensors: give it at least one");
  EXPECT_EQ(refused({.name = "other", .dtype = DType::kF32, .shape = {1}, .data = &value}),
            "a fake model has one weight, its seed");
  EXPECT_EQ(refused({.name = "seed", .dtype = DType::kF32, .shape = {1, 0}, .data = &value}),
            "tensor \"seed\" has shape [1, 0], expected sizes of at least 1 whose product fits into memory");
  EXPECT_EQ(refused({.name = "seed", .dtype = DType::kF32, .shape = {1}}), "tensor \"seed\" has no data");
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(slot, request), 1);
  EXPECT_EQ(harness.engine().weight_version().number, 0);
}

TEST(WeightUpdate, HalfAnUpdateEndsAllUntilAWholeOne) {
  UpdateHarness harness(OneByOne());
  Request request = Greedy(Prompt(9), 12);
  request.pin_prompt_as = "pinned";
  const size_t runs = harness.Submit(request), waits = harness.Submit(request);
  harness.harness().Step(3);
  harness.harness().model().FailNextUpdate(Internal("the source is gone"));
  EXPECT_EQ(harness.Update(UpdateWhen::kAbort).status().message(), "the source is gone");
  harness.harness().RunToEnd();
  EXPECT_TRUE(harness.told(runs).done && harness.told(waits).done);
  EXPECT_EQ(harness.told(waits).status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(harness.engine().Submit(request).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(harness.harness().cache().usage().pages_in_use, 0);

  ASSERT_TRUE(harness.Update(UpdateWhen::kAbort).ok());
  harness.harness().RunToEnd();
  EXPECT_TRUE(harness.harness().cache().FindPinned("pinned").has_value());
  const size_t after = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(after, request), 1);
  EXPECT_EQ(harness.told(after).versions.front(), 2);
}

// Updates, failures among them, amid submissions, cancellations, pins and failing steps, with steps ahead; CheckIntegrity after
// every step. COPPICE_LONG_TEST=1 (ctest label `long`) runs 10^6 events.
TEST(WeightUpdate, RandomTrafficIsOfOneVersionEach) {
  constexpr int kEventsPerRound = 1000;
  const int rounds = std::getenv("COPPICE_LONG_TEST") != nullptr ? 1000 : 10;
  std::mt19937 random(5);
  int64_t finished = 0, updates = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    EngineConfig config = kConfig;
    config.model.num_pages = 30;
    config.steps_ahead = round % 2;
    config.late_runner = round % 2 == 1;
    config.draft = round % 3 == 2 ? DraftMode::kNgram : DraftMode::kNone;
    UpdateHarness harness(config);
    std::vector<Request> requests;
    bool is_whole = true;
    for (int event = 0; event < kEventsPerRound; ++event) {
      if (is_whole && random() % 4 == 0) {
        Request request = Greedy(Prompt(1 + random() % 30, random() % 3), 1 + random() % 12, 1 + random() % 5);
        if (random() % 3 == 0) request.share_of = std::string(1, static_cast<char>('a' + random() % 3));
        if (random() % 8 == 0) request.max_tokens = 0;
        if (random() % 10 == 0 && request.prompt_ids.size() < 12) request.pin_prompt_as = random() % 2 == 0 ? "p" : "q";
        requests.push_back(request);
        harness.Submit(request);
      }
      if (random() % 12 == 0 && !requests.empty()) (void)harness.engine().Cancel(harness.id(random() % requests.size()));
      if (random() % 40 == 0) (void)harness.engine().Unpin(random() % 2 == 0 ? "p" : "q");
      if (random() % 50 == 0) {
        const bool fails = random() % 5 == 0;
        if (fails) harness.harness().model().FailNextUpdate(Internal("at random"));
        is_whole = harness.Update(random() % 2 == 0 ? UpdateWhen::kWait : UpdateWhen::kAbort).ok();
        ASSERT_EQ(is_whole, !fails);
        ++updates;
      }
      const bool fails = random() % 300 == 0;
      if (fails) harness.harness().model().FailNext(Internal("at random"));
      const Result<bool> step = harness.engine().Step();
      ASSERT_TRUE(step.ok() || fails) << step.status().ToString();
      harness.harness().model().FailNext(OkStatus());
      const Status status = harness.harness().cache().CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.message() << " after event " << event;
    }
    if (!is_whole) {
      ASSERT_TRUE(harness.Update(UpdateWhen::kWait).ok());
    }
    harness.harness().RunToEnd();
    for (size_t i = 0; i < requests.size(); ++i) finished += harness.CheckTokens(i, requests[i]);
    ASSERT_FALSE(HasFailure());
    for (const char* name : {"p", "q"}) (void)harness.engine().Unpin(name);
    harness.harness().RunToEnd();
    ASSERT_EQ(harness.harness().cache().usage().pages_in_use, 0);
  }
  EXPECT_GT(finished, 30 * rounds);
  EXPECT_GT(updates, 10 * rounds);
}

}  // namespace
}  // namespace coppice
